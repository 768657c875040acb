"""How a surface is broken: by changing what is sent, or what is answered, on the way."""

from collections.abc import Callable
from typing import Any, cast, override

from reflexr.contracts import JsonObject, SurfaceRejected

from .in_process_surface import InProcessSurface

type Change = Callable[[JsonObject], JsonObject]


class BrokenSurface:
    """A surface that breaks a promise.

    Attributes:
        what: What it does wrong.
        kind: Its class.
        guarantees: The guarantees that fail, and no other.
    """

    def __init__(self, what: str, kind: type[InProcessSurface], *guarantees: str) -> None:
        self.what = what
        self.kind = kind
        self.guarantees = {f"test_{guarantee}" for guarantee in guarantees}


def sending(change: Change, *types: str) -> type[InProcessSurface]:
    """A surface that changes commands of these types, or of all, before they are read."""

    class Sending(InProcessSurface):
        @override
        async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
            changed = change(command) if not types or command.get("type") in types else command
            return await super().execute(changed, command_id=command_id)

    return Sending


def telling(change: Change) -> type[InProcessSurface]:
    """A surface that changes the outcomes of commands."""

    class Telling(InProcessSurface):
        @override
        async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
            result = await super().execute(command, command_id=command_id)
            return {**result, "outcome": change(result["outcome"])} if result["ok"] else result

    return Telling


def refusing(change: Change) -> type[InProcessSurface]:
    """A surface that changes the rejections of commands."""

    class Refusing(InProcessSurface):
        @override
        async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
            try:
                result = await super().execute(command, command_id=command_id)
            except SurfaceRejected as rejected:
                raise SurfaceRejected(change(rejected.rejection)) from rejected
            return result if result["ok"] else {**result, "rejection": change(result["rejection"])}

    return Refusing


def asking(read: str, change: Change) -> type[InProcessSurface]:
    """A surface that changes the arguments of a read."""

    class Asking(InProcessSurface):
        @override
        async def read(self, name: str, **arguments: Any) -> Any:
            return await super().read(name, **(change(arguments) if name == read else arguments))

    return Asking


def answering(read: str, change: Callable[[Any], Any]) -> type[InProcessSurface]:
    """A surface that changes the answer to a read."""

    class Answering(InProcessSurface):
        @override
        async def read(self, name: str, **arguments: Any) -> Any:
            answer = await super().read(name, **arguments)
            return change(answer) if name == read else answer

    return Answering


def without(*fields: str) -> Change:
    """Drops fields."""
    return lambda value: {name: item for name, item in value.items() if name not in fields}


def having(**fields: Any) -> Change:
    """Sets fields that are there."""
    return lambda value: {**value, **{name: item for name, item in fields.items() if name in value}}


def changed(field: str, change: Callable[[Any], Any]) -> Change:
    """Changes a field that is there."""
    return lambda value: {**value, field: change(value[field])} if field in value else value


def everywhere(change: Callable[[Any], Any], value: Any) -> Any:
    """Changes every key and every value in a value, from within."""
    match value:
        case dict():
            items = cast("dict[str, Any]", value)
            return change({change(name): everywhere(change, item) for name, item in items.items()})
        case list():
            return change([everywhere(change, item) for item in cast("list[Any]", value)])
        case _:
            return change(value)


def everywhere_in(change: Callable[[Any], Any]) -> Change:
    """Changes every key and every value in a command or a query."""
    return lambda value: everywhere(change, value)


def texts(change: Callable[[str], str]) -> Callable[[Any], Any]:
    """Changes texts, and nothing else."""
    return lambda value: change(value) if isinstance(value, str) else value


def fields(change: Change) -> Callable[[Any], Any]:
    """Changes objects, and nothing else."""
    return lambda value: change(cast("JsonObject", value)) if isinstance(value, dict) else value


def numbers(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Changes numbers, and nothing else."""
    return lambda value: change(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
