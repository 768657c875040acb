"""`Catalog`: every statement there is, compiled once for each kind of database."""

from functools import cache

from sqlalchemy import Dialect

from reflexr.sql.appends import appends_of
from reflexr.sql.discovery import DueRuns, DueSchedules, Workspaces
from reflexr.sql.leases import Leases
from reflexr.sql.locks import Clocks, Locks
from reflexr.sql.logs import Logs
from reflexr.sql.members import MemberSets
from reflexr.sql.rules import DeadLetters, Progress, States, StoredRuleVersions
from reflexr.sql.runs import Runs
from reflexr.sql.schedules import Cursors, Ticks
from reflexr.sql.statements import Statements
from reflexr.sql.wakeups import Notifications


class Catalog:
    """The statements of a storage, by what they are on. It remembers nothing, so every storage shares it."""

    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.clock = Clocks(statements)
        self.members = MemberSets(statements)
        self.locks = Locks(statements)
        self.logs = Logs(statements)
        self.appends = appends_of(statements, self.logs)
        self.progress = Progress(statements)
        self.states = States(statements)
        self.runs = Runs(statements)
        self.dead_letters = DeadLetters(statements)
        self.stored_rules = StoredRuleVersions(statements)
        self.ticks = Ticks(statements)
        self.cursors = Cursors(statements)
        self.leases = Leases(statements)
        self.workspaces = Workspaces(statements, self.members)
        self.due_runs = DueRuns(statements)
        self.due_schedules = DueSchedules(statements, self.members)
        if statements.is_postgresql:
            self.notifications = Notifications(statements)


@cache
def catalog_of(dialect: type[Dialect]) -> Catalog:
    """Returns the statements for a kind of database."""
    return Catalog(Statements(dialect()))
