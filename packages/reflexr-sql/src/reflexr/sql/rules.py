"""What is kept of rules: their progress, their scope states, what they could not decide on, and stored rules."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    any_,
    delete,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    union_all,
)

from reflexr.core import DeadLetter, Needs, RuleProgress, ScopeState, StoredRule
from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import (
    BOOLEAN,
    INTEGER,
    TEXT,
    Parameters,
    Statements,
    document,
    from_set,
    in_workspace,
    in_workspace_of,
    parameter,
    text_of,
    workspace_columns,
)
from reflexr.sql.tables import DEAD_LETTERS, LEASES, RULE_PROGRESS, RUNS, SCOPE_STATES, STORED_RULES
from reflexr.sql.values import MAX_INTEGER, key, micros, micros_or_none, read, read_all, within
from reflexr.sql.writing import Writer
from reflexr.workspace import EVALUATION_LEASE, StateChanges

SCOPE_STATE: Final = TypeAdapter(ScopeState)
"""Writes and reads scope states."""


@dataclass(frozen=True, slots=True)
class StoredRuleFlags:
    """What the row of a stored rule says of it.

    Attributes:
        version: Its current version.
        enabled: Whether it is active and its rule enabled.
        ordered: Whether its runs are carried out in order.
        blocking: Whether a dead-lettered run holds back the later ones.
    """

    version: int
    enabled: bool
    ordered: bool
    blocking: bool


@dataclass(slots=True)
class Opening:
    """What an evaluation begins with.

    Attributes:
        progress: The progress of every rule, by name, in the order of creation.
        holder: Who has the lease on the workspace's evaluation.
        has_runs_in_line: Whether any run of the workspace stands in a line of its scope.
    """

    progress: dict[str, RuleProgress] = field(default_factory=dict[str, RuleProgress])
    holder: str | None = None
    has_runs_in_line: bool = False


_HOLDER: Final = -2
_IN_LINE: Final = -1


class Progress:
    """The statements on rules' progress."""

    def __init__(self, statements: Statements) -> None:
        columns = ("rule", "number", "generation", "cursor", "definition", "silent_through")
        self._new = statements.rows(
            "progress",
            rule=TEXT,
            number=INTEGER,
            generation=INTEGER,
            cursor=INTEGER,
            definition=TEXT,
            silent_through=INTEGER,
        )
        insert = statements.insert(RULE_PROGRESS).from_select(
            ["tenant_id", "workspace_id", *columns],
            from_set(*workspace_columns(), *(self._new.c[one] for one in columns)),
        )
        # A rule keeps the number with which it began: its order of creation.
        changed = ("generation", "cursor", "definition", "silent_through")
        self._save = statements(
            insert.on_conflict_do_update(
                index_elements=["tenant_id", "workspace_id", "rule"],
                set_={one: insert.excluded[one] for one in changed},
            )
        )
        self._select = statements(
            select(*(RULE_PROGRESS.c[one] for one in columns if one != "number"))
            .where(in_workspace(RULE_PROGRESS))
            .order_by(RULE_PROGRESS.c.number)
        )
        self._open = statements(self._opening(statements, columns))

    def _opening(self, statements: Statements, columns: Sequence[str]) -> Select[*tuple[Any, ...]]:
        """Selects the progress of every rule and, in rows of no rule, what else an evaluation begins with."""

        def other(number: int, holder: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
            what: dict[str, ColumnElement[Any]] = dict.fromkeys(columns, literal_column("0", INTEGER))
            what |= {"rule": literal_column("''", TEXT), "number": literal_column(str(number), INTEGER)}
            what |= {"definition": holder}
            return select(*(what[one].label(one) for one in columns))

        is_live = and_(LEASES.c.name == literal(EVALUATION_LEASE, TEXT), LEASES.c.expires > statements.now)
        # The order has PostgreSQL take the index of lines, whatever it believes how many runs stand in them.
        in_line = (
            select(RUNS.c.rule)
            .where(in_workspace(RUNS), RUNS.c.line.is_not(None))
            .order_by(RUNS.c.rule, RUNS.c.scope, RUNS.c.line)
            .limit(literal_column("1"))
            .subquery("in_line")
        )
        found = union_all(
            select(*(RULE_PROGRESS.c[one] for one in columns)).where(in_workspace(RULE_PROGRESS)),
            other(_HOLDER, LEASES.c.holder).where(in_workspace(LEASES), is_live),
            other(_IN_LINE, in_line.c.rule),
        ).subquery("found")
        return select(*(found.c[one] for one in columns)).order_by(found.c.number)

    async def load(self, fetcher: Fetcher, workspace: Parameters) -> dict[str, RuleProgress]:
        """Returns the progress of every rule, by name, in the order of creation."""
        return {row[0]: RuleProgress(*row) for row in await fetcher.fetch(self._select, workspace)}

    async def open(self, fetcher: Fetcher, workspace: Parameters, now: int) -> Opening:
        """Returns what an evaluation begins with."""
        opening = Opening()
        for rule, number, generation, cursor, definition, silent_through in await fetcher.fetch(
            self._open, {**workspace, "now": now}
        ):
            if number == _HOLDER:
                opening.holder = definition
            elif number == _IN_LINE:
                opening.has_runs_in_line = True
            else:
                opening.progress[rule] = RuleProgress(rule, generation, cursor, definition, silent_through)
        return opening

    async def save(
        self, writer: Writer, workspace: Parameters, progress: Collection[RuleProgress], number: int
    ) -> None:
        """Saves rules' progress, new ones numbered from a number on."""
        rows = [
            (key(one.rule), number + place, one.generation, one.cursor, one.definition, one.silent_through)
            for place, one in enumerate(progress)
        ]
        await writer.write(self._save, {**workspace, **self._new(rows)})


class States:
    """The statements on scope states."""

    def __init__(self, statements: Statements) -> None:
        table = SCOPE_STATES
        self._keys = statements.rows_of_workspace("keys", rule=TEXT, scope=TEXT)
        self._timers = statements.rows_of_workspace("timers", rule=TEXT, through=INTEGER)
        found = (table.c.rule, table.c.scope_key, text_of(table.c.state).label("state"))
        of_rule = in_workspace_of(table, self._keys) & (table.c.rule == self._keys.c["rule"])
        by_key = statements.one_for_each(
            self._keys, table, of_rule, *found, last=(table.c.scope, self._keys.c["scope"])
        )
        is_due = and_(
            in_workspace_of(table, self._timers),
            table.c.rule == self._timers.c["rule"],
            table.c.due <= self._timers.c["through"],
        )
        by_time = statements.for_each(self._timers, table, is_due, *found, order=table.c.due)
        self._by_key, self._by_time = statements(by_key), statements(by_time)
        self._by_both = statements(union_all(by_key, by_time))
        self._new = statements.rows(
            "states", rule=TEXT, scope=TEXT, scope_key=TEXT, due=INTEGER, expires=INTEGER, state=TEXT
        )
        columns = ("rule", "scope", "scope_key", "due", "expires")
        insert = statements.insert(table).from_select(
            ["tenant_id", "workspace_id", *columns, "state"],
            from_set(*workspace_columns(), *(self._new.c[one] for one in columns), document(self._new.c["state"])),
        )
        self._save = statements(
            insert.on_conflict_do_update(
                index_elements=["tenant_id", "workspace_id", "rule", "scope"],
                set_={one: insert.excluded[one] for one in ("due", "expires", "state")},
            )
        )
        self._drop = statements(delete(table).where(tuple_(*_PLACE).in_(select(*self._keys.c.values()))))
        self._expire = statements(delete(table).where(self._is_expired(statements)))
        self._rules = statements.rows("rules", rule=TEXT)
        self._clear = statements(delete(table).where(in_workspace(table), self._rules.holds(table.c.rule, "rule")))

    def _is_expired(self, statements: Statements) -> ColumnElement[bool]:
        expired = SCOPE_STATES.alias("expired")
        through = and_(
            in_workspace_of(expired, self._timers),
            expired.c.rule == self._timers.c["rule"],
            expired.c.expires <= self._timers.c["through"],
        )
        if statements.is_postgresql:
            # By where the rows are, which the workspace's lock keeps as it is: of how many there are PostgreSQL has no
            # idea, and may rather walk through the table.
            places = statements.for_each(
                self._timers,
                expired,
                through,
                literal_column("expired.ctid", TEXT).label("place"),
                order=expired.c.expires,
            )
            return literal_column(f"{SCOPE_STATES.name}.ctid") == any_(func.array(places.scalar_subquery()))
        lapsed = statements.for_each(
            self._timers,
            expired,
            through,
            *(expired.c[column.name] for column in _PLACE),
            order=expired.c.expires,
        )
        return tuple_(*_PLACE).in_(lapsed)

    async def load(
        self, fetcher: Fetcher, workspace: Parameters, needs: Mapping[str, Needs]
    ) -> dict[str, dict[str, ScopeState]]:
        """Returns the states that rules need, by rule and scope key."""
        keys = [(key(rule), key(scope)) for rule, need in needs.items() for scope in need.scope_keys]
        timers = [(key(rule), micros(need.due_through)) for rule, need in needs.items() if need.due_through is not None]
        states: dict[str, dict[str, ScopeState]] = {rule: {} for rule in needs}
        if not keys and not timers:
            return states
        statement = self._by_both if keys and timers else self._by_key if keys else self._by_time
        parameters = {**self._keys(keys, workspace), **self._timers(timers, workspace)}
        for rule, scope, text in await fetcher.fetch(statement, parameters):
            states[rule][scope] = read(SCOPE_STATE.validate_json, "scope state", text)
        return states

    async def change(self, writer: Writer, workspace: Parameters, changes: Mapping[str, StateChanges]) -> None:
        """Saves and drops states."""
        expired = [
            (key(rule), micros(change.expired_through))
            for rule, change in changes.items()
            if change.expired_through is not None
        ]
        dropped = [(key(rule), key(scope)) for rule, change in changes.items() for scope in change.dropped]
        # What is saved comes last: it stays, even if it is worth nothing already.
        if expired:
            await writer.write(self._expire, self._timers(expired, workspace))
        if dropped:
            await writer.write(self._drop, self._keys(dropped, workspace))
        if saved := list(_state_rows(changes)):
            await writer.write(self._save, {**workspace, **self._new(saved)})

    async def clear(self, fetcher: Fetcher, workspace: Parameters, rules: Collection[str]) -> None:
        """Drops every state of these rules."""
        await fetcher.fetch(self._clear, {**workspace, **self._rules([(key(rule),) for rule in rules])})


_PLACE: Final = (
    SCOPE_STATES.c.tenant_id,
    SCOPE_STATES.c.workspace_id,
    SCOPE_STATES.c.rule,
    SCOPE_STATES.c.scope,
)


def _state_rows(changes: Mapping[str, StateChanges]) -> Iterator[Sequence[object]]:
    for rule, change in changes.items():
        for scope, state in change.saved.items():
            text = SCOPE_STATE.dump_json(state).decode()
            yield key(rule), key(scope), scope, micros_or_none(state.due), micros_or_none(state.expires), text


class DeadLetters:
    """The statements on the envelopes that rules could not decide on."""

    def __init__(self, statements: Statements) -> None:
        table = DEAD_LETTERS
        self._new = statements.rows("letters", number=INTEGER, rule=TEXT, dead_letter=TEXT)
        insert = statements.insert(table).from_select(
            ["tenant_id", "workspace_id", "number", "rule", "dead_letter"],
            from_set(
                *workspace_columns(), self._new.c["number"], self._new.c["rule"], document(self._new.c["dead_letter"])
            ),
        )
        self._insert = statements(insert)
        newest = (
            select(text_of(table.c.dead_letter))
            .where(in_workspace(table))
            .order_by(table.c.number.desc())
            .limit(parameter("at_most", INTEGER))
        )
        self._newest = statements(newest)
        self._newest_of_rule = statements(newest.where(table.c.rule == parameter("of_rule", TEXT)))
        self._counts = statements(
            select(table.c.rule, func.count(literal_column("*"))).where(in_workspace(table)).group_by(table.c.rule)
        )

    async def add(self, writer: Writer, workspace: Parameters, dead_letters: Sequence[DeadLetter], number: int) -> None:
        """Records dead letters, numbered from a number on."""
        rows = [(number + place, key(one.rule), one.model_dump_json()) for place, one in enumerate(dead_letters)]
        await writer.write(self._insert, {**workspace, **self._new(rows)})

    async def newest(
        self, fetcher: Fetcher, workspace: Parameters, rule: str | None, limit: int | None
    ) -> list[DeadLetter]:
        """Returns the newest dead letters, of all rules or of one, oldest first."""
        parameters: dict[str, object] = {**workspace, "at_most": MAX_INTEGER if limit is None else within(limit)}
        if rule is not None:
            parameters["of_rule"] = key(rule)
        rows = await fetcher.fetch(self._newest if rule is None else self._newest_of_rule, parameters)
        return read_all(DeadLetter, reversed(rows))

    async def counts(self, fetcher: Fetcher, workspace: Parameters) -> dict[str, int]:
        """Returns how many dead letters each rule has, by name."""
        rows = await fetcher.fetch(self._counts, workspace)
        return {row[0]: row[1] for row in rows}


class StoredRuleVersions:
    """The statements on stored rules."""

    def __init__(self, statements: Statements) -> None:
        table = STORED_RULES
        flags = ("version", "is_active", "is_enabled", "is_ordered", "is_blocking")
        self._new = statements.rows(
            "new",
            rule=TEXT,
            number=INTEGER,
            version=INTEGER,
            is_active=BOOLEAN,
            is_enabled=BOOLEAN,
            is_ordered=BOOLEAN,
            is_blocking=BOOLEAN,
            stored_rule=TEXT,
        )
        insert = statements.insert(table).from_select(
            ["tenant_id", "workspace_id", "rule", "number", *flags, "stored_rule"],
            from_set(
                *workspace_columns(),
                *(self._new.c[one] for one in ("rule", "number", *flags)),
                document(self._new.c["stored_rule"]),
            ),
        )
        self._save = statements(
            insert.on_conflict_do_update(
                index_elements=["tenant_id", "workspace_id", "rule"],
                set_={one: insert.excluded[one] for one in (*flags, "stored_rule")},
            )
        )
        self._names = statements.rows("names", rule=TEXT)
        stored = select(text_of(table.c.stored_rule)).where(in_workspace(table)).order_by(table.c.number)
        self._active = statements(stored.where(table.c.is_active))
        self._named = statements(stored.where(self._names.holds(table.c.rule, "rule")))
        self._flags = statements(
            select(table.c.rule, table.c.version, table.c.is_enabled, table.c.is_ordered, table.c.is_blocking)
            .where(in_workspace(table))
            .order_by(table.c.number)
        )

    async def load(
        self, fetcher: Fetcher, workspace: Parameters, names: Collection[str] | None
    ) -> dict[str, StoredRule]:
        """Returns stored rules: those of these names, or every active one; in the order of creation."""
        if names is None:
            rows = await fetcher.fetch(self._active, workspace)
        elif names:
            rows = await fetcher.fetch(self._named, {**workspace, **self._names([(key(one),) for one in set(names)])})
        else:
            return {}
        return {stored.name: stored for stored in read_all(StoredRule, rows)}

    async def flags(self, fetcher: Fetcher, workspace: Parameters) -> dict[str, StoredRuleFlags]:
        """Returns what the row of each stored rule says of it, by name."""
        return {
            row[0]: StoredRuleFlags(row[1], *map(bool, row[2:])) for row in await fetcher.fetch(self._flags, workspace)
        }

    async def save(self, fetcher: Fetcher, workspace: Parameters, rules: Collection[StoredRule], number: int) -> None:
        """Saves versions of stored rules, new rules numbered from a number on."""
        rows = [
            (
                key(one.name),
                number + place,
                one.version,
                one.active,
                one.active and one.rule.enabled,
                one.rule.ordering == "scope",
                one.rule.on_dead_letter == "block",
                one.model_dump_json(),
            )
            for place, one in enumerate(rules)
        ]
        await fetcher.fetch(self._save, {**workspace, **self._new(rows)})


def flags_of(stored: StoredRule) -> StoredRuleFlags:
    """Returns what the row of a stored rule says of it."""
    return StoredRuleFlags(
        version=stored.version,
        enabled=stored.active and stored.rule.enabled,
        ordered=stored.rule.ordering == "scope",
        blocking=stored.rule.on_dead_letter == "block",
    )
