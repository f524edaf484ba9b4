"""Redaction: secrets come from the environment and go into requests and into the parts of a run, nowhere else.

A `Redactor` removes them from all text that is shown or written: a server, an environment or a library may quote one in
an error or in a reply. Every redactor knows the secrets of this process (`process_secrets`), and a run adds those of its
own. Each is found in plain, URL-encoded, JSON-escaped and base64 form.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote, urlsplit

import msgspec

from windrow.errors import UsageError
from windrow.records import Json

MASK = "[redacted]"
MIN_SECRET_CHARS = 8  # a placeholder such as "none" or "EMPTY" is no secret, and would mask ordinary words
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
_SECRET = re.compile(r"KEY(?!BOARD)|TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|_PASS$|_PWD$", re.I)
_ABOUT_SECRET = re.compile(r"_(PATH|DIR|FILE|HOME|NAME)$", re.I)  # where a secret is, or what it is called
# Words and numbers, which ordinary text holds too: `production`, `us-east-1`, `8080`, `127.0.0.1:8000`.
_ORDINARY = re.compile(r"[A-Za-z]+([-_. ][A-Za-z]+)*([-_]?\d{1,2})?(:\d{1,5})?|[-+\d.,:]+")
_RANDOM = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{8,}|[A-Za-z]{20,}")
_BASE64_URLSAFE = str.maketrans("+/", "-_")
NEEDLE_CHARS = 64  # the beginning of a form is enough to say that a line does not hold it
FEW = 8  # needles are looked for one by one; more take one pass of re2, however many they are
PATTERN_BYTES = 256 << 20  # of memory, at most; the default is too little for some thousand secrets

# The values of variables that this process has put into a configuration. They belong to the process, as its
# environment does: an error may quote one before there is a run, and beside it.
_expanded: dict[str, None] = {}


def is_secret(variable: str) -> bool:
    """Whether an environment variable of this name seems to hold a secret."""
    return _SECRET.search(variable) is not None and _ABOUT_SECRET.search(variable) is None


def secrets_of_header(name: str, value: str) -> tuple[str, ...]:
    """The secrets in a header: its value and, after a scheme such as Bearer, the credentials alone."""
    if not (is_secret(name) or name.lower() in _SECRET_HEADERS):
        return ()
    return value, value.partition(" ")[2].strip()


def remember_expanded(name: str, value: str) -> None:
    """Have every redactor of this process remove the value of a variable that a configuration was given.

    Unless its name says that it is a secret, its looks decide: words, numbers and paths that exist stay, and of a URL only
    the password and what seems random in it goes. Masked, they would spoil ordinary text.
    """
    value = value.strip()
    for secret in (value,) if is_secret(name) and not _is_path(value) else _secrets_in(value):
        _expanded[secret] = None


def process_secrets() -> Iterator[str]:
    """The secrets of this process: environment variables named like one, and what configurations have been given."""
    for name, value in os.environ.items():
        if is_secret(name) and not _is_path(value.strip()):
            yield value
    yield from tuple(_expanded)


def _secrets_in(value: str) -> Iterator[str]:
    if "://" in value:
        try:
            url = urlsplit(value)
        except ValueError:
            return
        yield unquote(url.password or "")
        parts = re.split(r"[/?&=#;]", f"{url.username}/{url.path}?{url.query}#{url.fragment}")
        yield from (part for part in parts if _RANDOM.search(part))
    elif not (_ORDINARY.fullmatch(value) or _is_path(value)):
        yield value


def _is_path(value: str) -> bool:
    return value.startswith(("/", "~/", "./", "../")) and os.path.exists(os.path.expanduser(value))


class Redactor:
    """Knows the secrets of a run and of its process, and replaces them in texts and encoded lines."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._forms: list[str] = []  # of every secret, longest first
        self._needles = _Needles()
        self._expanded = len(_expanded)  # how many of the process are known here
        self._add(process_secrets())

    def add(self, secret: str) -> None:
        self._add((secret,))

    @property
    def forms(self) -> tuple[str, ...]:
        """Every text that is removed, for a process that redacts its own output."""
        self._catch_up()
        return tuple(self._forms)

    def text(self, text: str) -> str:
        self._catch_up()
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def line(self, lines: bytes) -> bytes:
        """JSON lines with the secrets removed from their strings. Numbers are not changed."""
        self._catch_up()
        if not self._needles.any_in(lines):
            return lines
        return b"\n".join(
            line and msgspec.json.encode(self._value(msgspec.json.decode(line)))
            for line in lines.split(b"\n")
        )

    def tree(self, tree: dict[str, Json]) -> dict[str, Json]:
        """Plain values with the secrets removed from their strings."""
        return {self.text(key): self._value(item) for key, item in tree.items()}

    def _value(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self.tree(value)
        return [self._value(item) for item in value] if isinstance(value, list) else value

    def _catch_up(self) -> None:
        if self._expanded != len(_expanded):
            self._expanded = len(_expanded)
            self._add(tuple(_expanded))

    def _add(self, secrets: Iterable[str]) -> None:
        stripped = {_unicode(secret).strip() for secret in secrets}  # nobody quotes a newline at the end
        new = {secret for secret in stripped - self._secrets if len(secret) >= MIN_SECRET_CHARS}
        if new:
            self._secrets |= new
            forms = set[str]().union(*map(_forms_of, new))
            # Longest first: of two with the same beginning, nothing is left.
            self._forms = sorted(forms.union(self._forms), key=len, reverse=True)
            self._needles.add(_escaped(form[:NEEDLE_CHARS]) for form in forms)


class _Needles:
    """Says in one pass whether a line holds any of many short texts."""

    def __init__(self) -> None:
        self._all: dict[bytes, None] = {}
        self._single: list[bytes] = []  # that `_pattern` does not hold
        self._pattern: re.Pattern[bytes] | None = None

    def add(self, needles: Iterable[bytes]) -> None:
        new = [needle for needle in needles if needle not in self._all]
        self._all.update(dict.fromkeys(new))
        self._single += new
        if len(self._single) > FEW + len(self._all) // 4:  # not at each, so that a secret a task stays cheap
            import re2  # 20 ms that few runs need

            options = re2.Options()
            options.max_mem = PATTERN_BYTES
            self._pattern = re2.compile(b"|".join(map(re2.escape, self._all)), options)
            self._single = []

    def any_in(self, line: bytes) -> bool:
        for needle in self._single:
            if needle in line:
                return True
        return self._pattern is not None and self._pattern.search(line) is not None


def _forms_of(secret: str) -> set[str]:
    """A secret as it is, and as it stands in a URL, in JSON text, and in base64 of a text that holds it."""
    in_url = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    in_url |= {re.sub("%..", lambda match: match.group().lower(), form) for form in in_url}
    in_json = {_escaped(secret).decode(), json.dumps(secret)[1:-1], secret.replace("/", "\\/")}
    return {secret} | in_url | in_json | _base64_forms(secret.encode())


def _base64_forms(secret: bytes) -> set[str]:
    """Three bytes become four characters, so there are three forms, by what stands before the secret.

    Of each: what any following text leaves unchanged, and the end of a text, with and without padding.
    """
    forms: set[str] = set()
    for bytes_before, chars_before in enumerate((0, 2, 3)):  # the last of these depends on both
        encoded = base64.b64encode(bytes(bytes_before) + secret).decode()
        unchanged = (bytes_before + len(secret)) * 8 // 6
        forms |= {form[chars_before:] for form in (encoded[:unchanged], encoded, encoded.rstrip("="))}
    return forms | {form.translate(_BASE64_URLSAFE) for form in forms}


def _unicode(text: str) -> str:
    """A variable may hold any bytes; records hold U+FFFD for those that are not UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _escaped(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


def api_key(name: str, redactor: Redactor, *, required: bool) -> str | None:
    """The key in the environment variable `name`. The redactor knows it before it is used."""
    key = os.environ.get(name, "").strip()
    if not key:
        if required:
            raise UsageError(f"--api-key-env {name}: the environment variable {name} is not set")
        return None
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {name} holds characters that cannot be sent in a header")
    redactor.add(key)
    return key
