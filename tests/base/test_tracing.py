"""The spans of a job's steps."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.base.tracing import Steps, Tracing

sdk = pytest.importorskip("opentelemetry.sdk.trace")


@pytest.fixture
def exporter() -> Any:
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    if not isinstance(trace.get_tracer_provider(), sdk.TracerProvider):  # there is one for a process
        trace.set_tracer_provider(sdk.TracerProvider())
    made = InMemorySpanExporter()
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(made))
    return made


def test_steps_follow_each_other_within_one_span(exporter: Any) -> None:
    tracing = Tracing()
    steps = Steps(tracing, "job", db_collection_name="db.t")
    steps.begin("first")
    with tracing.inside("inner"):
        pass
    steps.begin("second")
    steps.end()
    inner, first, second, job = exporter.get_finished_spans()
    assert [span.name for span in (inner, first, second, job)] == ["inner", "first", "second", "job"]
    assert inner.parent.span_id == first.context.span_id
    assert first.parent.span_id == second.parent.span_id == job.context.span_id
    assert job.parent is None
    assert job.start_time <= first.start_time <= first.end_time <= second.start_time <= second.end_time <= job.end_time


def test_a_job_that_fails_ends_its_step_and_itself_with_the_error(exporter: Any) -> None:
    steps = Steps(Tracing(), "job")
    steps.begin("only")
    steps.end(ValueError("bad"))
    step, job = exporter.get_finished_spans()
    assert [span.name for span in (step, job)] == ["only", "job"]
    assert not step.status.is_ok
    assert not job.status.is_ok
