"""The tables, as SQLAlchemy knows them. The migrations in `reflexr.sql.revisions` bring a database to the same.

Every table of a workspace's data begins its primary key with the tenant and the workspace. Beside each document, which
is the JSON of its Pydantic model, stand the columns that queries filter and order by. Names longer than
`values.LONGEST_KEY` are kept there as digests, and times as microseconds since 1970 in UTC.
"""

from typing import Any, Final

from sqlalchemy import JSON, BigInteger, Boolean, Column, ColumnElement, Index, MetaData, SmallInteger, Table, Text
from sqlalchemy.types import TypeEngine

METADATA: Final = MetaData()
"""Every table of this package, and nothing else."""

NAME: Final[TypeEngine[str]] = Text(collation="C").with_variant(Text(), "sqlite")
"""A text that is compared byte by byte, whatever the database's own collation is."""

DOCUMENT: Final = JSON(none_as_null=True).with_variant(Text(), "sqlite")
"""JSON that is kept as it was written: the order of its keys, and integers of any size."""


def _workspace_key() -> tuple[Column[str], Column[str]]:
    return (
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
    )


def _partial_index(name: str, *columns: Column[Any], where: ColumnElement[bool]) -> None:
    Index(name, *columns, postgresql_where=where, sqlite_where=where)


WORKSPACES: Final = Table(
    "reflexr_workspaces",
    METADATA,
    *_workspace_key(),
    # The lock: whoever changes anything of a workspace holds its row.
    Column("head_seq", BigInteger, nullable=False),
    Column("head_ts", BigInteger),
    # Orders what has no other order of creation.
    Column("counter", BigInteger, nullable=False),
    # Digests of sets, see `reflexr.sql.members`: which rules are done with the log, which will be left of them when it
    # grows, and which schedules ever ticked here.
    Column("settled", NAME, nullable=False),
    Column("unsettled", NAME, nullable=False),
    Column("ticked", NAME, nullable=False),
    Column("has_stored_rules", Boolean, nullable=False),
    # Not `head_seq > 0`, on which no index may depend: then each publish would write the indexes too.
    Column("has_log", Boolean, nullable=False),
    # Room beside each row for its next version.
    postgresql_with={"fillfactor": 50},
)
_partial_index(
    "reflexr_workspaces_settled",
    WORKSPACES.c.settled,
    WORKSPACES.c.tenant_id,
    WORKSPACES.c.workspace_id,
    where=WORKSPACES.c.has_log.is_(True),
)
_partial_index(
    "reflexr_workspaces_ticked",
    WORKSPACES.c.ticked,
    WORKSPACES.c.tenant_id,
    WORKSPACES.c.workspace_id,
    where=WORKSPACES.c.has_log.is_(True),
)
_partial_index(
    "reflexr_workspaces_log",
    WORKSPACES.c.tenant_id,
    WORKSPACES.c.workspace_id,
    where=WORKSPACES.c.has_log.is_(True),
)

MEMBERS: Final = Table(
    "reflexr_members",
    METADATA,
    Column("digest", NAME, primary_key=True),
    Column("members", DOCUMENT, nullable=False),
)

EVENTS: Final = Table(
    "reflexr_events",
    METADATA,
    *_workspace_key(),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", NAME, nullable=False),
    Column("event_type", NAME, nullable=False),
    # The stored rule that the event is a version of.
    Column("rule", NAME),
    Column("envelope", DOCUMENT, nullable=False),
)
Index("reflexr_events_id", EVENTS.c.tenant_id, EVENTS.c.workspace_id, EVENTS.c.event_id, unique=True)
Index("reflexr_events_type", EVENTS.c.tenant_id, EVENTS.c.workspace_id, EVENTS.c.event_type, EVENTS.c.seq)
_partial_index(
    "reflexr_events_rule",
    EVENTS.c.tenant_id,
    EVENTS.c.workspace_id,
    EVENTS.c.rule,
    EVENTS.c.seq,
    where=EVENTS.c.rule.is_not(None),
)

RULE_PROGRESS: Final = Table(
    "reflexr_rule_progress",
    METADATA,
    *_workspace_key(),
    Column("rule", NAME, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("definition", NAME, nullable=False),
    Column("silent_through", BigInteger, nullable=False),
)

SCOPE_STATES: Final = Table(
    "reflexr_scope_states",
    METADATA,
    *_workspace_key(),
    Column("rule", NAME, primary_key=True),
    Column("scope", NAME, primary_key=True),
    Column("scope_key", NAME, nullable=False),
    Column("due", BigInteger),
    Column("expires", BigInteger),
    Column("state", DOCUMENT, nullable=False),
)
_partial_index(
    "reflexr_scope_states_due",
    SCOPE_STATES.c.tenant_id,
    SCOPE_STATES.c.workspace_id,
    SCOPE_STATES.c.rule,
    SCOPE_STATES.c.due,
    where=SCOPE_STATES.c.due.is_not(None),
)
_partial_index(
    "reflexr_scope_states_expires",
    SCOPE_STATES.c.tenant_id,
    SCOPE_STATES.c.workspace_id,
    SCOPE_STATES.c.rule,
    SCOPE_STATES.c.expires,
    where=SCOPE_STATES.c.expires.is_not(None),
)

RUNS: Final = Table(
    "reflexr_runs",
    METADATA,
    *_workspace_key(),
    Column("run_id", NAME, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("rule", NAME, nullable=False),
    Column("scope", NAME, nullable=False),
    Column("status", NAME, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("fired_seq", BigInteger, nullable=False),
    # Which line of its scope it stands in, from when on it may start or its answer is late, and in which queues it is
    # found then: by its rule, and by the rule's namespace if that is a stored one that lets it start. See
    # `reflexr.sql.queues`.
    Column("line", SmallInteger),
    Column("due", BigInteger),
    Column("queue", NAME),
    Column("stored_queue", NAME),
    Column("run", DOCUMENT, nullable=False),
)
Index("reflexr_runs_number", RUNS.c.tenant_id, RUNS.c.workspace_id, RUNS.c.number)
Index("reflexr_runs_rule", RUNS.c.tenant_id, RUNS.c.workspace_id, RUNS.c.rule, RUNS.c.number)
_partial_index(
    "reflexr_runs_line",
    RUNS.c.tenant_id,
    RUNS.c.workspace_id,
    RUNS.c.rule,
    RUNS.c.scope,
    RUNS.c.line,
    RUNS.c.generation,
    RUNS.c.fired_seq,
    RUNS.c.run_id,
    where=RUNS.c.line.is_not(None),
)
_partial_index(
    "reflexr_runs_queue",
    RUNS.c.queue,
    RUNS.c.due,
    where=RUNS.c.queue.is_not(None),
)
_partial_index(
    "reflexr_runs_stored_queue",
    RUNS.c.stored_queue,
    RUNS.c.due,
    where=RUNS.c.stored_queue.is_not(None),
)
# What workspaces take turns by: whoever looks for the next one passes all runs of the one before.
_partial_index(
    "reflexr_runs_turns",
    RUNS.c.queue,
    RUNS.c.tenant_id,
    RUNS.c.workspace_id,
    RUNS.c.due,
    where=RUNS.c.queue.is_not(None),
)
_partial_index(
    "reflexr_runs_stored_turns",
    RUNS.c.stored_queue,
    RUNS.c.tenant_id,
    RUNS.c.workspace_id,
    RUNS.c.rule,
    RUNS.c.due,
    where=RUNS.c.stored_queue.is_not(None),
)

DEAD_LETTERS: Final = Table(
    "reflexr_dead_letters",
    METADATA,
    *_workspace_key(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("rule", NAME, nullable=False),
    Column("dead_letter", DOCUMENT, nullable=False),
)
Index(
    "reflexr_dead_letters_rule",
    DEAD_LETTERS.c.tenant_id,
    DEAD_LETTERS.c.workspace_id,
    DEAD_LETTERS.c.rule,
    DEAD_LETTERS.c.number,
)

STORED_RULES: Final = Table(
    "reflexr_stored_rules",
    METADATA,
    *_workspace_key(),
    Column("rule", NAME, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    Column("is_ordered", Boolean, nullable=False),
    Column("is_blocking", Boolean, nullable=False),
    Column("stored_rule", DOCUMENT, nullable=False),
)

SCHEDULES: Final = Table(
    "reflexr_schedules",
    METADATA,
    *_workspace_key(),
    Column("schedule", NAME, primary_key=True),
    Column("name", NAME, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("last_tick", BigInteger, nullable=False),
)
Index("reflexr_schedules_last_tick", SCHEDULES.c.schedule, SCHEDULES.c.last_tick)

CURSORS: Final = Table(
    "reflexr_cursors",
    METADATA,
    *_workspace_key(),
    Column("name", NAME, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

LEASES: Final = Table(
    "reflexr_leases",
    METADATA,
    *_workspace_key(),
    Column("name", NAME, primary_key=True),
    Column("holder", NAME, nullable=False),
    Column("expires", BigInteger, nullable=False),
)

COMMAND_RESULTS: Final = Table(
    "reflexr_command_results",
    METADATA,
    *_workspace_key(),
    Column("participant", NAME, primary_key=True),
    Column("command_id", NAME, primary_key=True),
    # Who is carrying it out, until when unless they say more; null once there is a result.
    Column("claimant", NAME),
    Column("expires", BigInteger, nullable=False),
    Column("result", DOCUMENT),
)
Index("reflexr_command_results_expires", COMMAND_RESULTS.c.expires)
