"""What the slots say of their rows is that of the rows they hold, whoever came and went."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.torch.batches import CPU, make_requests
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.vocabulary import Drawable
from trinity.engine.torch.request import RunningRow
from trinity.engine.torch.slots import Slots

SIZE, VOCABULARY = 4, 60
params = st.builds(
    GenerateParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([-1, 5, VOCABULARY]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_tokens=st.sampled_from([0, 2]),
    max_tokens=st.just(8),
)
actions = st.lists(st.one_of(params, st.integers(0, SIZE - 1), st.just("draw")), max_size=30)


def row_of(wanted: GenerateParams) -> RunningRow:
    (request,) = make_requests([[3, 4]], [wanted])
    return request.rows()[0]


@given(actions)
def test_the_parameters_are_those_of_the_rows_in_slots(schedule: list[GenerateParams | int | str]) -> None:
    slots = Slots(SIZE, drawable=Drawable(VOCABULARY, (), (1,)), device=CPU)
    for action in schedule:
        free = slots.free()
        if isinstance(action, GenerateParams) and free:
            slots.place(free[:1], [row_of(action)])
        elif isinstance(action, int) and slots.rows[action] is not None:
            slots.release([action])
        elif action == "draw":
            for row in slots.rows:
                if row is not None:
                    row.num_drawn += 1
        here = [row for row in slots.rows if row is not None]
        asked, found = [row.request.params for row in here], slots.sampling(slice(0, SIZE))
        assert found.has_temperature == any(p.temperature == 0.7 for p in asked)
        assert found.has_greedy == any(p.temperature == 0 for p in asked)
        assert found.max_top_k == (5 if any(p.top_k == 5 for p in asked) else 0)
        assert found.has_top_p == any(p.top_p < 1 for p in asked)
        assert found.has_min == any(row.num_drawn < row.request.params.min_tokens for row in here)
        kept = {slot: row.request.params.temperature for slot, row in enumerate(slots.rows) if row is not None}
        for slot, temperature in kept.items():
            assert torch.isclose(found.temperature[slot], torch.tensor(temperature or 1.0))
