"""Facts: appending reflexr's own events, whose ids are derived and so can be foretold.

What they say is `reflexr.core`'s to make.
"""

from collections.abc import Sequence

from reflexr.core import Draft, Envelope, derived_id
from reflexr.workspace.errors import DuplicateEventIdError
from reflexr.workspace.storage import Transaction


async def append_facts(
    transaction: Transaction, facts: Sequence[Draft], traceparent: str | None = None
) -> list[Envelope]:
    """Appends reflexr's own facts, and returns their envelopes.

    Their ids can be foretold, so a publisher may have taken one for an event of its own. That must not keep a rule or
    a run from going on: such a fact gets the `next_id`, and the next, until one is free.

    Args:
        transaction: Where to append.
        facts: The facts, none of which is in the log yet.
        traceparent: The trace context that they carry, if they have none of their own.
    """
    drafts = [fact if fact.traceparent or not traceparent else fact._replace(traceparent=traceparent) for fact in facts]
    while True:
        try:
            return await transaction.append(drafts)
        except DuplicateEventIdError as error:
            taken = frozenset(error.ids)
            drafts = [_renamed(draft) if draft.id in taken else draft for draft in drafts]


def next_id(event_id: str) -> str:
    """Returns the id that an event gets instead, if somebody took this one for another: the same in every process."""
    return derived_id("evt", "again", event_id)


def _renamed(draft: Draft) -> Draft:
    renamed = next_id(draft.id)
    # A chain is named by its first event.
    chain = renamed if draft.correlation_id == draft.id else draft.correlation_id
    return draft._replace(id=renamed, correlation_id=chain)
