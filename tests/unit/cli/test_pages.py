"""The pages agree with the code: flags, configuration keys, commands and links that they name are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.doc_pages import PAGES, ROOT
from windrow.cli.main import COMMANDS, main
from windrow.config import (
    LimitsConfig,
    LocalConfig,
    PolicyConfig,
    RunConfig,
    Sampling,
    TasksConfig,
    TrustConfig,
)

TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
REFERENCE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "": RunConfig,
    "tasks.": TasksConfig,
    "policy.": PolicyConfig,
    "policy.local.": LocalConfig,
    "limits.": LimitsConfig,
    "trust.": TrustConfig,
}
# Of every command, of pytest, of a service, of pip.
OTHERS = {"--help", "--debug", "--version", "--randomly-seed", "--port", "--no-deps"}
# Flags of other systems, by the page for their people. The command takes these as its own and shows them nowhere.
ALIASES = {
    "--max-steps",
    "--max-concurrent",
    "--allowed-tools",
    "--disallowed-tools",
    "--num-repeats",
    "--num-samples-in-parallel",
}
THEIRS = {
    "CHANGELOG": ALIASES,
    "browsers": {"--only-shell"},
    "hud": ALIASES,
    "nemo-gym": ALIASES
    | {
        f"--{name}"
        for name in (
            "no-serve",
            "input",
            "output",
            "prompt-config",
            "max-output-tokens",
            "resume",
            "disable-aggregation",
        )
    },
}


def test_the_command_reference_is_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "docs" / "generate_cli.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_command_reference_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "generate_cli.py"
    script.write_text((ROOT / "docs" / "generate_cli.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "cli.md").write_text(REFERENCE.replace("--top-p", "--top-q"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert (done.returncode, "make docs" in done.stdout) == (1, True)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not target.startswith("http")]
    for target in targets:
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


def anchors(page: Path) -> list[str]:
    """What the headings of a page are called in a link."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_every_test_that_is_named_is_a_test(page: Path) -> None:
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)", page.read_text(encoding="utf-8")):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {test}\(", source, re.M), f"{page.name} names {file}::{test}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_every_flag_that_is_named_is_a_flag(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text(encoding="utf-8")))
    others = OTHERS | THEIRS.get(page.stem, set())
    assert sorted(named - set(re.findall(r"--[a-z-]+", REFERENCE)) - others) == []


def test_the_configuration_page_names_every_key() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    keys = [
        prefix + field.encode_name
        for prefix, section in SECTIONS.items()
        for field in msgspec.structs.fields(section)
    ]
    keys = [key for key in keys if f"{key}." not in SECTIONS] + [*Sampling.__struct_fields__]
    assert [
        key for key in keys if not re.search(rf"[`.]{re.escape(key)}[`.]", page) and key not in FLAGS
    ] == []


FLAGS = ("temperature", "top_p", "max_tokens")  # of the sampling: named as flags


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT).as_posix() for page in PAGES[1:]]
    assert [page for page in pages if f"({page})" not in readme] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_debug_and_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    nested = {"tasks": ["check"], "config": ["show"], "models": ["list"]}.get(command, [])
    with pytest.raises(SystemExit) as ended:
        main([command, *nested, "--debug", "--help"])
    assert ended.value.code == 0
    assert f"windrow {' '.join([command, *nested])}" in capsys.readouterr().out


def test_debug_is_no_unknown_flag_of_a_command_below_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "--debug"]) == 0
    assert main(["models", "list", "--debgu"]) == 2
    assert "did you mean '--debug'" in capsys.readouterr().err
