"""OpenTelemetry spans, for programs that want them: the extra `otel`, and an option of client or server.

Only OpenTelemetry's API is used here; the program chooses an SDK and where spans go. Without the option there is no
`Tracing`, and the paths of requests look at a None.

The client hands the context of a span to servers in a field behind the others of a request, `TRACE_FIELD`, as the text
of W3C's `traceparent`. Only servers that offer APIs of Forebay's get it, and those that know nothing of it pass over
it, as protobuf demands. It is always the last field, so that a server finds it without parsing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.base.errors import ErrorCode, UnsupportedOperation

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

T = TypeVar("T")

TRACE_FIELD = 20090
"""The number of the protobuf field; Fluss's messages have no field with it."""

_PARENT_BYTES = 55
"""The length of a W3C `traceparent`."""

_PARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def _field_start() -> bytes:
    """Tag and length of the field, as protobuf writes them."""
    tag, out = TRACE_FIELD << 3 | 2, bytearray()
    while tag > 0x7F:
        out.append(tag & 0x7F | 0x80)
        tag >>= 7
    return bytes([*out, tag, _PARENT_BYTES])


_FIELD_START = _field_start()
_FIELD_BYTES = len(_FIELD_START) + _PARENT_BYTES


class Tracing:
    """Makes spans by the program's tracer provider. Thread-safe."""

    def __init__(self) -> None:
        """Raises `UnsupportedOperation` where OpenTelemetry is not installed."""
        try:
            from opentelemetry import context, trace
        except ImportError:
            raise UnsupportedOperation(
                "tracing needs OpenTelemetry: pip install 'forebay[otel]', and an SDK", ErrorCode.CONFIG_EXCEPTION
            ) from None
        self._context, self._trace = context, trace
        self._tracer = trace.get_tracer("forebay")

    # ---- spans ------------------------------------------------------------------------------------------------------

    def current(self) -> Context:
        """Where the calling thread is: pass it as `parent` in another one."""
        return self._context.get_current()

    def now_ns(self) -> int:
        """The time as spans have it."""
        return time.time_ns()

    def begin(
        self,
        name: str,
        parent: Context | None = None,
        kind: str = "INTERNAL",
        start_ns: int | None = None,
        also: tuple[Context, ...] = (),
        **attributes: Any,
    ) -> Span:
        """A span that has begun. `also` are further contexts that it works for. Names of attributes: `_` is a dot."""
        links = [self._trace.Link(self._trace.get_current_span(each).get_span_context()) for each in also]
        return self._tracer.start_span(
            name,
            context=parent,
            kind=self._trace.SpanKind[kind],
            start_time=start_ns,
            links=links,
            attributes={key.replace("_", "."): value for key, value in attributes.items()},
        )

    def end(self, span: Span, error: BaseException | str | None = None) -> None:
        """End a span; it failed if there is an `error`."""
        if isinstance(error, BaseException):
            span.record_exception(error)
        if error is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.end()

    @contextmanager
    def inside(self, name: str, **attributes: Any) -> Iterator[Span]:
        """A span around a block; spans that the block begins are its children."""
        span = self.begin(name, **attributes)
        try:
            with self._trace.use_span(span):
                yield span
        except BaseException as e:
            self.end(span, e)
            raise
        self.end(span)

    def each(self, name: str, items: Iterator[T], **attributes: Any) -> Iterator[T]:
        """`items`, with a span from the first one that is asked for to the end; it counts them."""
        span, count, error = self.begin(name, **attributes), 0, None
        try:
            while True:
                with self._trace.use_span(span):  # not around `yield`: the caller has spans of its own
                    item = next(items, None)
                if item is None:
                    break
                count += 1
                yield item
        except Exception as e:
            error = e
            raise
        finally:
            span.set_attribute("forebay.batches", count)
            close = getattr(items, "close", None)
            if close is not None:
                close()
            self.end(span, error)

    # ---- over the wire ----------------------------------------------------------------------------------------------

    def field_of(self, span: Span) -> bytes:
        """The field of a request that names `span` as the parent of what its server does."""
        context = span.get_span_context()
        return _FIELD_START + b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, int(context.trace_flags))

    def parent_in(self, body: bytes | bytearray | memoryview) -> Context | None:
        """The parent that the body of a request names; None if it names none."""
        tail = bytes(body[-_FIELD_BYTES:])
        match = _PARENT.fullmatch(tail, len(_FIELD_START)) if tail.startswith(_FIELD_START) else None
        if match is None:
            return None
        trace = self._trace
        context = trace.SpanContext(
            int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=trace.TraceFlags(int(match[3], 16))
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(context)) if context.is_valid else None


class Steps:
    """A span with one child at a time: the steps of a job. Used by one thread."""

    def __init__(self, tracing: Tracing, name: str, **attributes: Any) -> None:
        self._tracing = tracing
        self._whole = tracing.begin(name, **attributes)
        self._step: Span | None = None
        self._token: Any = None

    def begin(self, name: str) -> None:
        """End the current step and begin the next one, whose children are the spans that this thread begins."""
        self._end_step(None)
        tracing = self._tracing
        self._step = tracing.begin(name, tracing._trace.set_span_in_context(self._whole))
        self._token = tracing._context.attach(tracing._trace.set_span_in_context(self._step))

    def end(self, error: BaseException | None = None) -> None:
        self._end_step(error)
        self._tracing.end(self._whole, error)

    def _end_step(self, error: BaseException | None) -> None:
        if self._step is not None:
            self._tracing._context.detach(self._token)
            self._tracing.end(self._step, error)
            self._step = None
