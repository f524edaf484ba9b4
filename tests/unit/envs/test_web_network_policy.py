"""What a page may reach, by URL and by address."""

from __future__ import annotations

import ipaddress

import pytest

from windrow.envs.web.failures import AddressRefused
from windrow.envs.web.network_policy import NetworkPolicy, is_own, is_public
from windrow.envs.web.pool_settings import PoolSettings, pool_settings


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1:8000/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://0.0.0.0/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://10.0.0.1/",
        "http://172.16.3.4/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://100.64.0.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://user:password@127.0.0.1/",
        "file:///etc/passwd",
        "chrome://version",
        "view-source:file:///etc/passwd",
        "javascript:alert(1)",
        "ftp://example.com/",
        "http://",
        "http://[::1",
        "example.com",
    ],
)
def test_no_page_is_sent_to_a_file_or_to_an_address_of_this_machine_or_its_networks(url: str) -> None:
    with pytest.raises(AddressRefused):
        NetworkPolicy().check(url)


@pytest.mark.parametrize(
    "url", ["https://example.com/a?b#c", "http://1.1.1.1/", "http://[2606:4700::1111]:8080/", "about:blank"]
)
def test_what_is_public_is_let_through(url: str) -> None:
    NetworkPolicy().check(url)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/"),
        ("127.0.0.1", "http://127.0.0.1:8000/"),
        ("localhost", "http://LocalHost/"),
        ("*.localhost", "http://shop.localhost/"),
        ("10.0.0.0/8", "http://10.1.2.3/"),
        ("[::1]:8000", "http://[::1]:8000/"),
        ("*", "http://192.168.0.1/"),
    ],
)
def test_the_allow_list_lets_through_what_it_names_and_nothing_else(entry: str, url: str) -> None:
    network_policy = NetworkPolicy([entry])
    network_policy.check(url)
    with pytest.raises(AddressRefused):
        network_policy.check("file:///etc/passwd")
    if entry != "*":
        for other in ("http://127.0.0.2:8001/", "http://192.168.0.1/"):
            with pytest.raises(AddressRefused):
                network_policy.check(other)


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "2001:0:7f00:1::", "224.0.0.1", "::",
        "::127.0.0.1", "64:ff9b:1::a00:1", "fec0::1", "168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::254",
    ],
)  # fmt: skip
def test_a_private_address_inside_another_kind_of_address_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


def test_an_address_that_this_machine_has_is_its_own_whatever_kind_it_is() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("1.1.1.1"))


def test_the_pools_settings_are_taken_from_the_environments_and_checked() -> None:
    assert pool_settings({"browsers": 1, "viewport": [1, 2]}) == PoolSettings(browsers=1)
    for wrong in ({"browsers": 0}, {"max_age_s": -1}, {"allow": "127.0.0.1"}, {"allow": ["300.0.0.0/8"]}):
        with pytest.raises(ValueError):
            pool_settings(wrong)
