"""One pass over a source: every row is checked, identified by its content, and counted; only offsets stay in memory.

The pass settles everything that depends on the whole source, before any limit or shuffle: the occurrence numbers of
equal rows, ids that are used twice, and which rows have answers.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence

import msgspec

from windrow.config import Sampling, nearest
from windrow.errors import UsageError
from windrow.identity import canonical, digest_and_size
from windrow.records import Json, Task
from windrow.tasks.occurrences import DIGEST_BYTES, Identities
from windrow.tasks.row_formats import key_of, limits_of, own_env, sampling_of
from windrow.tasks.row_problems import list_problems
from windrow.tasks.rows import MAX_ROW_BYTES, BadRow, Row, Rows
from windrow.util.hash_index import HashIndex

# Raises ValueError with what is wrong with a row for the environment it is meant for.
RowCheck = Callable[[Mapping[str, Json]], None]
# Told of every good row: (row, where).
RowWatch = Callable[[Mapping[str, Json], str], None]
# The name of the data set that has the row at an offset.
SourceOf = Callable[[int], str]


class PackedSource(msgspec.Struct, frozen=True, array_like=True):
    """A source without invalid rows, in few bytes: the offsets, identities and requests of its rows."""

    offsets: bytes
    indexes: bytes
    digests: bytes
    occurrences: dict[int, int]
    row_sampling: list[str]
    row_limits: list[str]
    row_agents: list[str]

    def __post_init__(self) -> None:
        rows, rest = divmod(len(self.digests), DIGEST_BYTES)
        numbers = rows * array("Q").itemsize
        if rest or not rows or (len(self.offsets), len(self.indexes)) != (numbers, numbers):
            raise ValueError("rows lack a digest, an offset or an index")
        if not all(0 <= row < rows and 0 < occurrence < rows for row, occurrence in self.occurrences.items()):
            raise ValueError("it counts rows that it does not have")


class Source:
    """The valid rows of one data set, by position; a task is read from its file when it is asked for."""

    def __init__(
        self, rows: Rows, *, name: str, split: str | None, source_of: SourceOf | None = None
    ) -> None:
        self.rows = rows
        self.name = name
        self.split = split
        self._source_of = source_of
        self.invalid: list[BadRow] = []
        self.row_sampling: set[str] = set()
        self.row_limits: set[str] = set()
        self.row_agents: set[str] = set()
        self._offsets = array("Q")
        self._indexes = array("Q")
        self._identities = Identities()

    def __len__(self) -> int:
        return len(self._offsets)

    def identity(self, position: int) -> tuple[str, int]:
        """Return (digest, occurrence), which identifies a task independently of its position."""
        return self._identities[position]

    def source(self, position: int) -> str:
        """Return the name of the data set that holds the task; it is part of the identity."""
        return self.name if self._source_of is None else self._source_of(self._offsets[position])

    @property
    def repeated(self) -> int:
        """Count the tasks whose content an earlier one has, too."""
        return self._identities.repeated

    @property
    def joined(self) -> bool:
        """Return whether the source joins several data sets, or may do so later."""
        return self._source_of is not None

    def index(self, position: int) -> int:
        """Return the task's number among all rows of the source."""
        return self._indexes[position]

    def task(self, position: int) -> Task:
        row = self.rows.read(self._offsets[position])
        return make_task(
            row,
            digest=self.identity(position)[0],
            source=self.source(position),
            split=self.split,
            index=self._indexes[position],
        )

    def select(
        self, *, of: Sequence[int] | None = None, limit: int | None = None, shuffle: int | None = None
    ) -> Selection:
        """Return the tasks to run, out of those at these positions and in their order. A shuffle orders by content,
        so that rows added to a file later do not move the others.
        """
        positions: Sequence[int] = range(len(self)) if of is None else of
        if shuffle is not None:
            seed = str(shuffle).encode()

            def rank(position: int) -> bytes:
                name, occurrence = self.identity(position)
                return hashlib.sha256(b"%s:%s:%d" % (seed, name.encode(), occurrence)).digest()

            positions = array("Q", sorted(positions, key=rank))
        return Selection(self, positions[:limit])

    def packed(self) -> PackedSource:
        """Return the data from which `unpack` restores this source for the same rows without reading them."""
        assert self._source_of is None
        assert not self.invalid
        return PackedSource(
            self._offsets.tobytes(),
            self._indexes.tobytes(),
            *self._identities.packed(range(len(self))),
            sorted(self.row_sampling),
            sorted(self.row_limits),
            sorted(self.row_agents),
        )

    @classmethod
    def unpack(cls, packed: PackedSource, rows: Rows, *, name: str, split: str | None) -> Source:
        source = cls(rows, name=name, split=split)
        source._offsets.frombytes(packed.offsets)
        source._indexes.frombytes(packed.indexes)
        source._identities = Identities.restored(packed.digests, packed.occurrences)
        source.row_sampling.update(packed.row_sampling)
        source.row_limits.update(packed.row_limits)
        source.row_agents.update(packed.row_agents)
        return source

    def digest(self, positions: Sequence[int]) -> str:
        """The same for the same tasks in the same order."""
        names = [self.name] if self._source_of is None else [self.source(at) for at in positions]
        digests, occurrences = self._identities.packed(positions)
        hasher = hashlib.sha256(canonical([names, sorted(occurrences.items())]))
        hasher.update(digests)
        return hasher.hexdigest()

    def _add(self, row: Row, digest: str, occurrence: int) -> None:
        self._offsets.append(row.offset)
        self._indexes.append(row.index)
        self._identities.append(digest, occurrence)


class Selection:
    """Some tasks of a source, in a given order."""

    def __init__(self, source: Source, positions: Sequence[int]) -> None:
        self._source = source
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def identity(self, position: int) -> tuple[str, int]:
        return self._source.identity(self._positions[position])

    def index(self, position: int) -> int:
        return self._source.index(self._positions[position])

    def source(self, position: int) -> str:
        return self._source.source(self._positions[position])

    def task(self, position: int) -> Task:
        return self._source.task(self._positions[position])

    def digest(self) -> str:
        """The same for the same tasks in the same order."""
        return self._source.digest(self._positions)


def scan(
    rows: Rows,
    *,
    name: str,
    split: str | None = None,
    check: RowCheck,
    watch: RowWatch | None = None,
    skip_invalid: bool = False,
    source_of: SourceOf | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> Source:
    """Read every row once. Bad rows raise one error that lists them; with `skip_invalid`, they go to
    `source.invalid`.

    `source_of` returns the data set of a row by its offset, if there are several; ids and repeated rows are counted
    within each data set.
    """
    source = Source(rows, name=name, split=split, source_of=source_of)
    occurrences, ids = HashIndex(), HashIndex()  # how often a digest came up; which task has an id
    taken: dict[int, tuple[str, int]] = {}  # invalid rows whose id belongs to the task at that position
    for row in rows:
        if isinstance(row, BadRow):
            source.invalid.append(row)
            continue
        try:
            row_digest, size = digest_and_size(row.data)
            if size > max_row_bytes:
                raise ValueError(_too_long(size, max_row_bytes))
            _check_row(row.data)
            check(row.data)
        except (ValueError, RecursionError) as problem:
            source.invalid.append(BadRow(row.where, str(problem)))
            continue
        dataset: Hashable = source_of(row.offset) if source_of is not None else None
        if (key := key_of(row.data)) is not None:
            id_owner = ids.get((dataset, key))
            if id_owner is None:
                ids.set((dataset, key), len(source))
            elif source.identity(id_owner)[0] != row_digest:
                taken[len(source.invalid)] = (key, id_owner)
                source.invalid.append(BadRow(row.where, ""))
                continue
        occurrence = occurrences.get((dataset, row_digest)) or 0
        occurrences.set((dataset, row_digest), occurrence + 1)
        source._add(row, row_digest, occurrence)
        source.row_sampling.update(sampling_of(row.data))
        source.row_limits.update(limits_of(row.data, split))
        if row.data.get("agent") is not None:
            source.row_agents.add(row.data["agent"])
        if watch:
            watch(row.data, row.where)
    if taken:
        _describe_taken_ids(source, taken)
    if source.invalid and not skip_invalid:
        raise UsageError(list_problems(source.invalid) + "\n--skip-invalid leaves such rows out")
    if not len(source):
        raise UsageError(f"{rows.name} holds no valid task")
    return source


def _too_long(size: int, max_bytes: int) -> str:
    more = (
        f"; --set tasks.max_row_mb=N allows up to {MAX_ROW_BYTES >> 20}" if max_bytes < MAX_ROW_BYTES else ""
    )
    return f"the row is longer than {max_bytes >> 20} MiB ({size:,} bytes), and each episode holds and records it{more}"


def make_task(row: dict[str, Json], *, digest: str, source: str, split: str | None, index: int) -> Task:
    return Task(
        key=task_key(row, digest),
        digest=digest,
        source=source,
        split=split,
        index=index,
        tags=tuple(row.get("tags") or ()),
        data=row,
    )


def task_key(row: Mapping[str, Json], digest: str) -> str:
    """Return the row's own `id`, or else its digest, as a label."""
    key = key_of(row)
    return digest if key is None else key


def _check_row(row: Mapping[str, Json]) -> None:
    """Check the types of the fields that all environments share."""
    _expect(row, "id", (str, int), "a string or an integer")
    _expect({"env": own_env(row)}, "env", (str,), "a name")
    _expect(row, "agent", (str,), "a name")
    _expect(row, "tags", (list,), "a list of strings")
    if not all(isinstance(tag, str) for tag in row.get("tags") or ()):
        raise ValueError("'tags' must be a list of strings")
    _expect(row, "sampling", (dict,), 'an object such as {"temperature": 0.7}')
    sampling = sampling_of(row)
    if not sampling:
        return
    for option in sampling:
        if option not in Sampling.__struct_fields__:
            raise ValueError(
                f"'sampling' has no option {option!r}{nearest(option, Sampling.__struct_fields__)}"
            )
    try:
        msgspec.convert(sampling, Sampling)
    except msgspec.ValidationError as problem:
        raise ValueError(f"'sampling': {problem}") from None


def _expect(row: Mapping[str, Json], field: str, types: tuple[type, ...], expected: str) -> None:
    value = row.get(field)
    if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
        raise ValueError(
            f"{field!r} must be {expected}, found {canonical(value)[:80].decode(errors='replace')}"
        )


def _describe_taken_ids(source: Source, taken: Mapping[int, tuple[str, int]]) -> None:
    """Write the problems of rows whose id another row has. The rows are read again, because their locations are not
    in memory.
    """
    wanted = {source.index(id_owner) for _, id_owner in taken.values()}
    where = {row.index: row.where for row in source.rows if isinstance(row, Row) and row.index in wanted}
    for number, (key, id_owner) in taken.items():
        problem = f"id {key!r} is already used by another row with other content, at {where[source.index(id_owner)]}"
        source.invalid[number] = BadRow(source.invalid[number].where, problem)
