"""What an engine says of how it answers now."""

from __future__ import annotations

import contextlib
import time

from trinity.engine.gauge import NUM_LAST, RequestGauge


def test_requests_that_overlap_wait_for_slots_and_failed_ones_are_in_no_figure() -> None:
    gauge = RequestGauge()
    assert set(gauge.table(version=3, num_slots=2)) == {"model_version", "weight_age_s"}
    with gauge.request(2), gauge.request(3):
        pass
    with contextlib.suppress(OSError), gauge.request(50):
        raise OSError
    table = gauge.table(version=3, num_slots=2)
    assert table["queue"] == 3 and table["model_version"] == 3 and table["latency_s"] >= 0
    assert gauge.table(version=3, num_slots=9)["queue"] == 0
    for _ in range(NUM_LAST):
        with gauge.request(4):
            pass
    assert gauge.table(version=3, num_slots=2)["queue"] == 2, "what is long past is forgotten, and nothing is under way"


def test_the_age_of_weights_begins_anew_with_an_update() -> None:
    gauge = RequestGauge()
    time.sleep(0.02)
    old = gauge.table(version=0, num_slots=1)["weight_age_s"]
    started = time.monotonic()
    gauge.note_weights()
    age = gauge.table(version=1, num_slots=1)["weight_age_s"]
    assert old >= 0.02 and age <= time.monotonic() - started
