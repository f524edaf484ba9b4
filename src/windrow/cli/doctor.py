"""What is installed here, and what an endpoint can do."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version

from windrow.cli.output import write_out
from windrow.config import OPTIONS, load_config
from windrow.policies.doctor import Finding, examine
from windrow.policies.models import MODELS
from windrow.registry import declared
from windrow.util.redaction import Redactor
from windrow.version import __version__

EXTRAS = {
    "local": ("xllamacpp",),
    "parquet": ("pyarrow",),
    "hf": ("datasets",),
    "math": ("math-verify",),
    "mcp": ("mcp",),
    "tokens": ("numpy",),
    "web": ("playwright",),
}
MARKS = {True: "ok", None: "--", False: "!!"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", action="append", metavar="URL", help="an endpoint to try; repeats")
    parser.add_argument("--model", help="the model to ask there")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="the variable that holds the key (OPENAI_API_KEY)"
    )


def run(arguments: argparse.Namespace) -> int:
    findings = _here()
    if arguments.model is not None or arguments.base_url is not None:
        findings += _endpoint(arguments)
    for finding in findings:
        write_out(f"{MARKS[finding.ok]}  {finding.name:<15} {finding.detail}")
    return 1 if any(finding.ok is False for finding in findings) else 0


def _here() -> list[Finding]:
    cores = len(os.sched_getaffinity(0))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    findings = [
        Finding("windrow", True, f"{__version__} on Python {platform.python_version()}, {cores} cores"),
        Finding("open files", True if files >= 4096 else None, f"{files:,} at a time (ulimit -n)"),
    ]
    for extra, packages in {**EXTRAS, **declared("extras")}.items():
        versions = [_installed(package) for package in packages]
        whole = all(versions)
        detail = (
            ", ".join(text for text in versions if text) if whole else f"pip install 'windrow-rl[{extra}]'"
        )
        findings.append(Finding(f"[{extra}]", True if whole else None, detail))
    findings.append(_browser())
    for model in MODELS.values():
        here = model.path.exists()
        detail = str(model.path) if here else f"windrow models pull {model.name}"
        findings.append(Finding(model.name, True if here else None, detail))
    return findings


def _browser() -> Finding:
    """The Chromium that the environment `web` would start."""
    from windrow.envs.web.launch import HOW_TO_GET_ONE, chromium_version, find_chromium

    path = find_chromium()
    if path is None:
        return Finding("browser", None, HOW_TO_GET_ONE)
    version_text = chromium_version(path)
    return Finding("browser", version_text is not None, f"{version_text or 'does not start:'} {path}")


def _endpoint(arguments: argparse.Namespace) -> list[Finding]:
    from windrow.policies import make_policy
    from windrow.policies.chat import ChatPolicy

    findings: list[Finding] = []
    for url in arguments.base_url or [None]:
        options = {name: getattr(arguments, name, None) for name in OPTIONS}
        policy = make_policy(load_config((), {**options, "base_url": url}), Redactor())
        if not isinstance(policy, ChatPolicy):
            return [Finding("endpoint", None, f"{policy.model} has no endpoint to examine")]
        findings += asyncio.run(examine(policy))
    return findings


def _installed(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None
