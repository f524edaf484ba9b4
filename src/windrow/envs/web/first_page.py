"""Opens the first page of an episode, and tells whose fault it is if that fails."""

from __future__ import annotations

from urllib.parse import urljoin

from windrow.envs.web.action_executor import address, net_error
from windrow.envs.web.browser_session import BrowserSession
from windrow.envs.web.failures import PageTimeout, Unreachable
from windrow.envs.web.launch import playwright
from windrow.errors import EnvError, InfraError, ToolError
from windrow.records import Task

NO_SUCH_HOST = frozenset(
    {"no_such_host", "ERR_NAME_NOT_RESOLVED", "ERR_INVALID_URL", "ERR_UNKNOWN_URL_SCHEME"}
)
# Chromium's message for 256.256.256.256, which has no code.
REFUSED_ADDRESS = "Cannot navigate to invalid URL"


def start_of(task: Task) -> str:
    return str(task.get("start_url") or task["url"])


async def begin(browser: BrowserSession, wanted: str, base_url: str | None) -> None:
    """Open the first page. An address that is only a path is relative to `base_url`.

    An invalid address is the task's fault, and final. A server that does not answer is an outage, and is tried again.
    """
    try:
        url = address(urljoin(base_url, wanted) if base_url is not None else wanted, "about:blank")
        await browser.open(url)
    except ToolError as problem:
        raise _invalid(wanted, str(problem)) from None
    except (PageTimeout, Unreachable) as problem:
        if problem.kind in NO_SUCH_HOST:
            raise _invalid(wanted, str(problem)) from None
        raise InfraError(f"the start page {wanted} did not open: {problem}", kind="start_page") from None
    except playwright().Error as problem:
        why = net_error(str(problem)) or str(problem).splitlines()[0]
        if why in NO_SUCH_HOST or REFUSED_ADDRESS in why:
            raise _invalid(wanted, why) from None
        raise InfraError(f"the start page {wanted} could not be opened: {why}", kind="start_page") from None


def _invalid(wanted: str, why: str) -> EnvError:
    return EnvError(f"there is no start page {wanted}: {why}", kind="invalid_url", retryable=False)
