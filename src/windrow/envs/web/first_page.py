"""The first page of an episode: where it is, and what it means that it cannot be had."""

from __future__ import annotations

from urllib.parse import urljoin

from windrow.envs.web.action_executor import address, net_error
from windrow.envs.web.browser_session import Browsing
from windrow.envs.web.failures import PageTimeout, Unreachable
from windrow.envs.web.launch import playwright
from windrow.errors import EnvError, InfraError, ToolError
from windrow.records import Task

NO_SUCH_PLACE = frozenset(
    {"no_such_host", "ERR_NAME_NOT_RESOLVED", "ERR_INVALID_URL", "ERR_UNKNOWN_URL_SCHEME"}
)
REFUSED_ADDRESS = (
    "Cannot navigate to invalid URL"  # what Chromium says of 256.256.256.256, without a name for it
)


def start_of(task: Task) -> str:
    return str(task.get("start_url") or task["url"])


async def begin(browser: Browsing, wanted: str, base_url: str | None) -> None:
    """Open the first page; one that is only a path is below `base_url`.

    An address that is none is the task's fault, and final; one that does not answer is nobody's, and is tried again.
    """
    try:
        url = address(urljoin(base_url, wanted) if base_url is not None else wanted, "about:blank")
        if browser.lease.page.url == url:  # a page that is used again is there already
            browser.start_url = url
        else:
            await browser.open(url)
    except ToolError as problem:
        raise _invalid(wanted, str(problem)) from None
    except (PageTimeout, Unreachable) as problem:
        if problem.kind in NO_SUCH_PLACE:
            raise _invalid(wanted, str(problem)) from None
        raise InfraError(f"the start page {wanted} did not open: {problem}", kind="start_page") from None
    except playwright().Error as problem:
        why = net_error(str(problem)) or str(problem).splitlines()[0]
        if why in NO_SUCH_PLACE or REFUSED_ADDRESS in why:
            raise _invalid(wanted, why) from None
        raise InfraError(f"the start page {wanted} could not be opened: {why}", kind="start_page") from None


def _invalid(wanted: str, why: str) -> EnvError:
    return EnvError(f"there is no start page {wanted}: {why}", kind="invalid_url", retryable=False)
