"""Statements in SQLAlchemy's Core, compiled once, and the sets of rows that they are given.

A statement names its parameters; a set is one statement's whatever the number of its rows. This is where the two
databases differ in how a set gets in: PostgreSQL unpacks an array for each column, SQLite one JSON text.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from pydantic_core import to_json
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ClauseElement,
    Column,
    ColumnElement,
    Dialect,
    Executable,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    column,
    extract,
    func,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.selectable import HasCTE
from sqlalchemy.types import TypeEngine

from reflexr.sql.tables import DOCUMENT
from reflexr.workspace import WorkspaceRef

type Parameters = Mapping[str, object]
"""What a statement is given, by the names of its parameters."""

type Row = Sequence[Any]
"""What a statement answers with, column by column."""

TEXT: Final[TypeEngine[str]] = Text()
INTEGER: Final[TypeEngine[int]] = BigInteger()
BOOLEAN: Final[TypeEngine[bool]] = Boolean()


class Statement:
    """A statement for one kind of database.

    Attributes:
        text: Its SQL, with the driver's own placeholders.
        element: What it was compiled from.
    """

    def __init__(self, element: Executable, dialect: Dialect) -> None:
        self.element = element
        compiled = cast("SQLCompiler", cast("ClauseElement", element).compile(dialect=dialect))
        defaults = compiled.params
        self.text = compiled.string
        self._arguments = tuple((name, defaults[name]) for name in compiled.positiontup or ())

    def arguments(self, parameters: Parameters) -> list[object]:
        """Returns the parameters in the order of the placeholders."""
        return [parameters.get(name, default) for name, default in self._arguments]


class RowSet:
    """A parameter that is a set of rows, for a statement to select from.

    Attributes:
        source: What the statement selects from.
        c: Its columns, by name.
    """

    def __init__(self, name: str, columns: Mapping[str, TypeEngine[Any]], *, arrays: bool) -> None:
        self._name = name
        self._columns = dict(columns)
        self._arrays = arrays
        self.source = _unpacked(name, columns) if arrays else _parsed(name, columns)
        self.c: dict[str, ColumnElement[Any]] = {one: self.source.c[one] for one in columns}

    def __call__(self, rows: Collection[Sequence[object]], workspace: Parameters | None = None) -> dict[str, object]:
        """Returns the parameters that hold these rows, which may begin with their workspace."""
        if workspace is not None:
            place = (workspace["tenant"], workspace["workspace"])
            rows = [(*place, *row) for row in rows]
        if not self._arrays:
            return {self._name: to_json(list(rows)).decode()}
        columns = zip(*rows, strict=True) if rows else [()] * len(self._columns)
        return {f"{self._name}_{one}": list(values) for one, values in zip(self._columns, columns, strict=True)}

    def holds(self, value: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Restricts a value to those of one of the set's columns.

        PostgreSQL looks each element of an array up in an index. Where it is given a table to join instead, and its
        statistics are older than what a workspace has grown to, it walks through all of the workspace.
        """
        if self._arrays:
            return value == any_(_array(self._name, name, self._columns[name]))
        return value.in_(select(self.c[name]))


class Statements:
    """Makes statements for one kind of database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._together: dict[tuple[Statement, ...], Statement] = {}
        self.is_postgresql = dialect.name == "postgresql"
        # PostgreSQL reads its own clock, unless the caller says what time it is.
        given = bindparam("now", type_=INTEGER)
        seconds = extract("epoch", func.statement_timestamp())
        self.now: ColumnElement[int] = (
            func.coalesce(given, sql_cast(seconds * 1_000_000, BigInteger)) if self.is_postgresql else given
        )

    def __call__(self, element: Executable) -> Statement:
        """Compiles a statement."""
        return Statement(element, self._dialect)

    def together(self, *statements: Statement) -> Statement:
        """Returns what executes several statements as one, for PostgreSQL alone; it answers what the last one does.

        Their parameters have names of their own, but for those that have the same value in all of them. None reads what
        another one writes, and no two write to one table.
        """
        if (together := self._together.get(statements)) is None:
            *others, last = statements
            parts = [_with_cte(one).cte(f"part_{number}") for number, one in enumerate(others, start=1)]
            together = self._together[statements] = self(cast("Executable", _with_cte(last).add_cte(*parts)))
        return together

    def rows(self, name: str, /, **columns: TypeEngine[Any]) -> RowSet:
        """Returns a parameter that is a set of rows with these columns."""
        return RowSet(name, columns, arrays=self.is_postgresql)

    def rows_of_workspace(self, name: str, /, **columns: TypeEngine[Any]) -> RowSet:
        """Returns a set of rows of one workspace, to join with a table.

        Each row names the workspace. Where the statement does instead, SQLite walks through all that a table holds of
        it, and looks each row up in the set.
        """
        return RowSet(name, {"tenant": TEXT, "workspace": TEXT, **columns}, arrays=self.is_postgresql)

    def for_each(
        self,
        rows: RowSet,
        table: FromClause,
        condition: ColumnElement[bool],
        *columns: ColumnElement[Any],
        order: ColumnElement[Any],
    ) -> Select[*tuple[Any, ...]]:
        """Selects from a table what belongs to each row of a set, by one index, whatever the table's statistics say.

        Args:
            rows: The set, of rows that name their workspace.
            table: The table.
            condition: What belongs to a row.
            columns: What to select.
            order: The index's column after those that the condition equates.
        """
        if not self.is_postgresql:
            return select(*columns).join_from(rows.source, table, condition)
        # The OFFSET keeps the planner from turning it back into a join.
        belonging = select(*columns).where(condition).order_by(order).offset(literal_column("0"))
        return row_by_row(rows, belonging)

    def one_for_each(
        self,
        rows: RowSet,
        table: FromClause,
        condition: ColumnElement[bool],
        *columns: ColumnElement[Any],
        last: tuple[ColumnElement[Any], ColumnElement[Any]],
    ) -> Select[*tuple[Any, ...]]:
        """Selects as `for_each` does, where a unique index leaves one row.

        Args:
            rows: The set, of rows that name their workspace.
            table: The table.
            condition: What belongs to a row, but for the index's last column.
            columns: What to select.
            last: The index's last column, and what it is.
        """
        column, value = last
        if not self.is_postgresql:
            return select(*columns).join_from(rows.source, table, and_(condition, column == value))
        # Of a column that is equated an order says nothing.
        belonging = select(*columns).where(condition, column.between(value, value)).order_by(column)
        return row_by_row(rows, belonging.limit(literal_column("1")))

    def insert(self, table: Table) -> "postgresql.Insert | sqlite.Insert":
        """Begins an INSERT, which can say what to do about a row that is there already."""
        return postgresql.insert(table) if self.is_postgresql else sqlite.insert(table)


def named(workspace: WorkspaceRef) -> dict[str, object]:
    """Returns the parameters that name a workspace."""
    return {"tenant": workspace.tenant_id, "workspace": workspace.workspace_id}


def parameter[T](name: str, kind: TypeEngine[T]) -> ColumnElement[T]:
    """Returns a parameter that is one value."""
    return bindparam(name, type_=kind)


def in_workspace(table: Table | FromClause) -> ColumnElement[bool]:
    """Restricts a table to the workspace that the parameters name."""
    return (table.c.tenant_id == parameter("tenant", TEXT)) & (table.c.workspace_id == parameter("workspace", TEXT))


def in_workspace_of(table: Table | FromClause, rows: RowSet) -> ColumnElement[bool]:
    """Restricts a table to the workspace that a set's rows name."""
    return (table.c.tenant_id == rows.c["tenant"]) & (table.c.workspace_id == rows.c["workspace"])


def workspace_columns() -> tuple[ColumnElement[str], ColumnElement[str]]:
    """Returns the workspace that the parameters name, to insert."""
    return parameter("tenant", TEXT).label("tenant_id"), parameter("workspace", TEXT).label("workspace_id")


def document(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Returns a document's text as what its column holds."""
    return sql_cast(value, DOCUMENT)


def text_of(value: "Column[Any] | ColumnElement[Any]") -> ColumnElement[str]:
    """Returns a document's text, as it was written."""
    return sql_cast(value, Text)


def row_by_row(rows: RowSet, belonging: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """Selects what belongs to each row of a set, of which the selection says so; PostgreSQL alone.

    It may believe that a workspace has hardly a row: its statistics are older than what the workspace has grown to, or
    tenants and workspaces go together, which it does not know. Then every index that begins with the workspace seems to
    be as good as the right one, and a join through all of the workspace too. Looking up row by row is no choice, and
    the right index is where it saves a sort.
    """
    found = belonging.lateral("found")
    return select(*found.c).join_from(rows.source, found, true())


def from_set(*columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Selects from a set for an INSERT: without a WHERE, SQLite takes ON CONFLICT for a join's."""
    return select(*columns).where(text("1 = 1"))


def _with_cte(statement: Statement) -> "HasCTE":
    return cast("HasCTE", statement.element)


def _array(name: str, column: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    return bindparam(f"{name}_{column}", type_=ARRAY(kind))


def _unpacked(name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    arrays = [_array(name, one, kind) for one, kind in columns.items()]
    unpacked = func.unnest(*arrays).table_valued(*(column(one, kind) for one, kind in columns.items()), name=name)
    return unpacked.render_derived()


def _parsed(name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    elements = func.json_each(bindparam(name, type_=Text())).table_valued("value", name=f"{name}_json")
    values = [
        sql_cast(elements.c.value.op("->>")(literal_column(str(place))), kind).label(one)
        for place, (one, kind) in enumerate(columns.items())
    ]
    return select(*values).subquery(name)
