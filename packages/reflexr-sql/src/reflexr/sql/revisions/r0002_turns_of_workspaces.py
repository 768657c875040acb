"""The indexes by which workspaces take turns."""

from typing import Final

from alembic import op
from sqlalchemy import ColumnElement, column

revision: Final = "0002"
down_revision: Final = "0001"


def upgrade() -> None:
    """Creates them."""
    _create_index("reflexr_runs_turns", ["queue", "tenant_id", "workspace_id", "due"], column("queue").is_not(None))
    _create_index(
        "reflexr_runs_stored_turns",
        ["stored_queue", "tenant_id", "workspace_id", "rule", "due"],
        column("stored_queue").is_not(None),
    )


def _create_index(name: str, columns: list[str], condition: ColumnElement[bool]) -> None:
    op.create_index(name, "reflexr_runs", columns, postgresql_where=condition, sqlite_where=condition)
