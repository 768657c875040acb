from hypothesis import given
from hypothesis import strategies as st

from reflexr.workspace.ordered import Ordered


@given(st.lists(st.integers(0, 20), max_size=200))
def test_values_keep_their_order_whatever_is_added_and_removed(values: list[int]) -> None:
    ordered, model = Ordered[int](), set[int]()
    for value in values:
        # What is there is removed, and what is not is added.
        if value in model:
            ordered.remove(value)
        else:
            ordered.add(value)
        model ^= {value}

        assert list(ordered) == sorted(model)
        assert list(reversed(ordered)) == sorted(model, reverse=True)
        assert len(ordered) == len(model)


def test_a_queue_through_which_much_has_passed_holds_only_what_is_in_it() -> None:
    queue = Ordered[int]()
    for value in range(10_000):
        queue.add(value)
        if value >= 10:
            queue.remove(value - 10)

    assert list(queue) == list(range(9_990, 10_000))
