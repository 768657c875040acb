"""`Workspaces`: an application's rules and event types over a storage, and the door to each workspace."""

from collections.abc import Iterable, Mapping

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from reflexr.core import (
    DEFAULT_MAX_DEPTH,
    DEFAULT_REGISTRY,
    Actor,
    Command,
    CommandResult,
    Event,
    EventRegistry,
    Predicates,
    Rule,
    StoredRules,
)
from reflexr.telemetry import Instruments, Tracing
from reflexr.workspace.clocks import Clock, system_clock
from reflexr.workspace.commands import CommandResults, Commands, InMemoryCommandResults
from reflexr.workspace.configuration import Configuration, Settings
from reflexr.workspace.handles import Workspace
from reflexr.workspace.lists import EVENT_CLASS, RULE, Kind, checked_lists
from reflexr.workspace.live_output import InProcessLiveOutput, LiveOutput
from reflexr.workspace.operators import Operator, checked_actor
from reflexr.workspace.permissions import OPEN, READ_RULES, READ_SCHEDULES, Access, Authorize, permit
from reflexr.workspace.publishing import checked_id
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.schedules import Schedule
from reflexr.workspace.storage import Storage, Transaction


class Workspaces:
    """An application's workspaces: the code rules and event types of all of them, checked once, over a storage."""

    def __init__(
        self,
        storage: Storage,
        *,
        events: Iterable[type[Event]] = (),
        emitted: Iterable[type[Event]] = (),
        rules: Iterable[Rule] = (),
        predicates: Predicates | None = None,
        stored_rules: StoredRules | None = None,
        schedules: Iterable[Schedule] = (),
        registry: EventRegistry = DEFAULT_REGISTRY,
        authorize: Authorize | None = None,
        clock: Clock = system_clock,
        max_depth: int = DEFAULT_MAX_DEPTH,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        results: CommandResults | None = None,
        live_output: LiveOutput | None = None,
    ) -> None:
        """Checks what the application says.

        Args:
            storage: Where the workspaces are.
            events: The event classes that may be published; every other is refused.
            emitted: The event classes that only runs may publish.
            rules: The rules of every workspace.
            predicates: The functions that filters name, each of which says whether it admits an envelope.
            stored_rules: What rules may be stored in a workspace at run time; by default none.
            schedules: What publishes ticks, for rules to watch.
            registry: The event types that there are: what rules are checked against and envelopes are read with.
            authorize: The application's permissions, asked before anything is done; by default anybody may do anything.
            clock: What time it is, where a schedule's status says what comes next; storages have clocks of their own.
            max_depth: How deep a causal chain may get, at least 1.
            tracer_provider: What traces; by default the process's.
            meter_provider: What measures; by default the process's.
            results: Remembers commands' results; by default the last 10,000 of this process.
            live_output: Carries what runs say while they are at work to who listens; by default within this process.

        Raises:
            RuleError: Something can never work: a rule, two rules of one name, an event class that the registry does
                not know. Every problem is listed.
        """
        lists = checked_lists(
            {
                "events": (events, EVENT_CLASS),
                "emitted": (emitted, EVENT_CLASS),
                "rules": (rules, RULE),
                "schedules": (schedules, Kind("a schedule", "Schedule(...)", lambda item: isinstance(item, Schedule))),
            }
        )
        settings = Settings(
            storage=storage,
            events=lists["events"],
            emitted=lists["emitted"],
            rules=lists["rules"],
            predicates=dict(predicates or {}),
            stored_rules=stored_rules,
            schedules=lists["schedules"],
            registry=registry,
            authorize=authorize,
            clock=clock,
            max_depth=max_depth,
            live_output=InProcessLiveOutput() if live_output is None else live_output,
        )
        self._configuration = Configuration(settings, Tracing(tracer_provider), Instruments(meter_provider))
        self._commands = Commands(
            InMemoryCommandResults() if results is None else results, self._configuration.instruments
        )

    @property
    def configuration(self) -> Configuration:
        """What the application said, checked, and what was made of it."""
        return self._configuration

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The code rules, by name."""
        return self._configuration.rules

    async def open(
        self, tenant_id: str, workspace_id: str, *, actor: Actor, authorize: Authorize | None = None
    ) -> Workspace:
        """Returns a workspace in the hands of an actor. It need not exist yet: publishing to it begins its log.

        Args:
            tenant_id: The tenant: 1 to 255 characters.
            workspace_id: The workspace's id within the tenant: 1 to 255 characters.
            actor: Who acts: every event and every operation is attributed to it.
            authorize: Permissions to ask besides the application's, such as a surface's.

        Raises:
            ValidationFailed: An id is none, or the actor.
            Forbidden: The actor may not open the workspace.
        """
        checked_id(tenant_id, "tenant_id")
        checked_id(workspace_id, "workspace_id")
        checked_actor(actor)
        hooks = self._hooks(authorize)
        await permit(hooks, tenant_id, workspace_id, actor, Access(OPEN))
        return Workspace(self._configuration, Operator(WorkspaceRef(tenant_id, workspace_id), actor), hooks)

    def handle(self, workspace: WorkspaceRef, *, actor: Actor) -> Workspace:
        """Returns a workspace in the hands of an actor without asking whether it may be opened.

        For those who act in the application's own name, such as the reactor; every method still asks.

        Raises:
            ValidationFailed: An id of the workspace is none, or the actor.
        """
        checked_id(workspace.tenant_id, "tenant_id")
        checked_id(workspace.workspace_id, "workspace_id")
        checked_actor(actor)
        hook = self._configuration.settings.authorize
        return Workspace(self._configuration, Operator(workspace, actor), () if hook is None else (hook,))

    async def list_rules(self, tenant_id: str, *, actor: Actor, authorize: Authorize | None = None) -> list[Rule]:
        """Returns the code rules, which every workspace of the tenant has.

        Args:
            tenant_id: The tenant.
            actor: Who asks; the permissions are asked about the tenant, and so about no workspace.
            authorize: Permissions to ask besides the application's.

        Raises:
            ValidationFailed: The tenant's id is none, or the actor.
            Forbidden: The actor may not read rules in this tenant.
        """
        await self._permit(tenant_id, actor, READ_RULES, authorize)
        return list(self.rules.values())

    async def list_schedules(
        self, tenant_id: str, *, actor: Actor, authorize: Authorize | None = None
    ) -> list[Schedule]:
        """Returns the schedules that tick in the tenant, with those of their targets that are its workspaces.

        Args:
            tenant_id: The tenant.
            actor: Who asks; the permissions are asked about the tenant, and so about no workspace.
            authorize: Permissions to ask besides the application's.

        Raises:
            ValidationFailed: The tenant's id is none, or the actor.
            Forbidden: The actor may not read schedules in this tenant.
        """
        await self._permit(tenant_id, actor, READ_SCHEDULES, authorize)
        within = (schedule.within(tenant_id) for schedule in self._configuration.settings.schedules)
        return [schedule for schedule in within if schedule is not None]

    async def rules_in(self, where: Workspace | WorkspaceRef | Transaction) -> dict[str, Rule]:
        """Returns a workspace's rules, by name: the code rules, then its active stored rules.

        Read anew each time, through the transaction where one is given, so that a change takes effect at once.
        """
        return await self._configuration.rules_in(where.ref if isinstance(where, Workspace) else where)

    async def execute(self, workspace: Workspace, command: Command, *, command_id: str | None = None) -> CommandResult:
        """Carries out a command through a handle, and returns its result. Never raises, but when it is cancelled.

        A command that the same participant repeats in the same workspace, under its `command_id`, is not carried out
        again: the answer is the first result, awaited if the first is still being carried out. One that could not be
        carried out, as something broke, is a `CommandFailed`, and is tried again when it is repeated.

        Args:
            workspace: Through whose eyes and with whose permissions.
            command: The command.
            command_id: What a repetition is recognised by, 1 to 255 characters; by default a new one.
        """
        return await self._commands.execute(workspace, command, command_id)

    async def _permit(self, tenant_id: str, actor: Actor, action: str, authorize: Authorize | None) -> None:
        checked_id(tenant_id, "tenant_id")
        checked_actor(actor)
        await permit(self._hooks(authorize), tenant_id, None, actor, Access(action))

    def _hooks(self, authorize: Authorize | None) -> tuple[Authorize, ...]:
        return tuple(hook for hook in (self._configuration.settings.authorize, authorize) if hook is not None)
