"""The first tables."""

from typing import Final

from alembic import op
from sqlalchemy import JSON, BigInteger, Boolean, Column, ColumnElement, SmallInteger, Text, column

revision: Final = "0001"
down_revision: Final = None

# As they were then: what `reflexr.sql.tables` says moves on.
NAME: Final = Text(collation="C").with_variant(Text(), "sqlite")
DOCUMENT: Final = JSON(none_as_null=True).with_variant(Text(), "sqlite")


def upgrade() -> None:
    """Creates them."""
    op.create_table(
        "reflexr_command_results",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("participant", NAME, primary_key=True),
        Column("command_id", NAME, primary_key=True),
        Column("claimant", NAME),
        Column("expires", BigInteger(), nullable=False),
        Column("result", DOCUMENT),
    )
    op.create_index("reflexr_command_results_expires", "reflexr_command_results", ["expires"])
    op.create_table(
        "reflexr_cursors",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("name", NAME, primary_key=True),
        Column("seq", BigInteger(), nullable=False),
    )
    op.create_table(
        "reflexr_dead_letters",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("number", BigInteger(), primary_key=True, autoincrement=False),
        Column("rule", NAME, nullable=False),
        Column("dead_letter", DOCUMENT, nullable=False),
    )
    op.create_index(
        "reflexr_dead_letters_rule", "reflexr_dead_letters", ["tenant_id", "workspace_id", "rule", "number"]
    )
    op.create_table(
        "reflexr_events",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("seq", BigInteger(), primary_key=True, autoincrement=False),
        Column("event_id", NAME, nullable=False),
        Column("event_type", NAME, nullable=False),
        Column("rule", NAME),
        Column("envelope", DOCUMENT, nullable=False),
    )
    op.create_index("reflexr_events_id", "reflexr_events", ["tenant_id", "workspace_id", "event_id"], unique=True)
    _partial_index(
        "reflexr_events_rule",
        "reflexr_events",
        ["tenant_id", "workspace_id", "rule", "seq"],
        column("rule").is_not(None),
    )
    op.create_index("reflexr_events_type", "reflexr_events", ["tenant_id", "workspace_id", "event_type", "seq"])
    op.create_table(
        "reflexr_leases",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("name", NAME, primary_key=True),
        Column("holder", NAME, nullable=False),
        Column("expires", BigInteger(), nullable=False),
    )
    op.create_table(
        "reflexr_members",
        Column("digest", NAME, primary_key=True),
        Column("members", DOCUMENT, nullable=False),
    )
    op.create_table(
        "reflexr_rule_progress",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("rule", NAME, primary_key=True),
        Column("number", BigInteger(), nullable=False),
        Column("generation", BigInteger(), nullable=False),
        Column("cursor", BigInteger(), nullable=False),
        Column("definition", NAME, nullable=False),
        Column("silent_through", BigInteger(), nullable=False),
    )
    op.create_table(
        "reflexr_runs",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("run_id", NAME, primary_key=True),
        Column("number", BigInteger(), nullable=False),
        Column("rule", NAME, nullable=False),
        Column("scope", NAME, nullable=False),
        Column("status", NAME, nullable=False),
        Column("generation", BigInteger(), nullable=False),
        Column("fired_seq", BigInteger(), nullable=False),
        Column("line", SmallInteger()),
        Column("due", BigInteger()),
        Column("queue", NAME),
        Column("stored_queue", NAME),
        Column("run", DOCUMENT, nullable=False),
    )
    _partial_index(
        "reflexr_runs_line",
        "reflexr_runs",
        ["tenant_id", "workspace_id", "rule", "scope", "line", "generation", "fired_seq", "run_id"],
        column("line").is_not(None),
    )
    op.create_index("reflexr_runs_number", "reflexr_runs", ["tenant_id", "workspace_id", "number"])
    _partial_index("reflexr_runs_queue", "reflexr_runs", ["queue", "due"], column("queue").is_not(None))
    _partial_index(
        "reflexr_runs_stored_queue", "reflexr_runs", ["stored_queue", "due"], column("stored_queue").is_not(None)
    )
    op.create_index("reflexr_runs_rule", "reflexr_runs", ["tenant_id", "workspace_id", "rule", "number"])
    op.create_table(
        "reflexr_schedules",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("schedule", NAME, primary_key=True),
        Column("name", NAME, nullable=False),
        Column("number", BigInteger(), nullable=False),
        Column("last_tick", BigInteger(), nullable=False),
    )
    op.create_index("reflexr_schedules_last_tick", "reflexr_schedules", ["schedule", "last_tick"])
    op.create_table(
        "reflexr_scope_states",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("rule", NAME, primary_key=True),
        Column("scope", NAME, primary_key=True),
        Column("scope_key", NAME, nullable=False),
        Column("due", BigInteger()),
        Column("expires", BigInteger()),
        Column("state", DOCUMENT, nullable=False),
    )
    _partial_index(
        "reflexr_scope_states_due",
        "reflexr_scope_states",
        ["tenant_id", "workspace_id", "rule", "due"],
        column("due").is_not(None),
    )
    _partial_index(
        "reflexr_scope_states_expires",
        "reflexr_scope_states",
        ["tenant_id", "workspace_id", "rule", "expires"],
        column("expires").is_not(None),
    )
    op.create_table(
        "reflexr_stored_rules",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("rule", NAME, primary_key=True),
        Column("number", BigInteger(), nullable=False),
        Column("version", BigInteger(), nullable=False),
        Column("is_active", Boolean(), nullable=False),
        Column("is_enabled", Boolean(), nullable=False),
        Column("is_ordered", Boolean(), nullable=False),
        Column("is_blocking", Boolean(), nullable=False),
        Column("stored_rule", DOCUMENT, nullable=False),
    )
    op.create_table(
        "reflexr_workspaces",
        Column("tenant_id", NAME, primary_key=True),
        Column("workspace_id", NAME, primary_key=True),
        Column("head_seq", BigInteger(), nullable=False),
        Column("head_ts", BigInteger()),
        Column("counter", BigInteger(), nullable=False),
        Column("settled", NAME, nullable=False),
        Column("unsettled", NAME, nullable=False),
        Column("ticked", NAME, nullable=False),
        Column("has_stored_rules", Boolean(), nullable=False),
        Column("has_log", Boolean(), nullable=False),
        postgresql_with={"fillfactor": 50},
    )
    _partial_index(
        "reflexr_workspaces_log", "reflexr_workspaces", ["tenant_id", "workspace_id"], column("has_log").is_(True)
    )
    _partial_index(
        "reflexr_workspaces_settled",
        "reflexr_workspaces",
        ["settled", "tenant_id", "workspace_id"],
        column("has_log").is_(True),
    )
    _partial_index(
        "reflexr_workspaces_ticked",
        "reflexr_workspaces",
        ["ticked", "tenant_id", "workspace_id"],
        column("has_log").is_(True),
    )


def _partial_index(name: str, table: str, columns: list[str], condition: ColumnElement[bool]) -> None:
    op.create_index(name, table, columns, postgresql_where=condition, sqlite_where=condition)
