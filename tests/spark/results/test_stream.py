"""The results channel: rows arrive while tasks run, each exactly once, and everybody hears of an end."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pyarrow as pa
import pytest

from millrace.engine.plan.expressions import Column, ColumnRef, Compare, Literal
from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.codec import frame
from millrace.limits.coordinator import Coordinator
from millrace.limits.messages import EARLY, Batch, EarlyRows, JoinStream, Start
from millrace.spark.results import DriverServer, ResultsSink
from tests.limits.running import PATIENCE, SPAWN
from tests.limits.test_server import raw
from tests.spark.results import tasks
from tests.spark.results.tasks import SCHEMA, batch_of


@pytest.fixture
def server():
    served = DriverServer()
    yield served
    served.close()


@pytest.fixture
def stream(server):
    with server.open(SCHEMA) as opened:
        yield opened


def sink_of(stream, partition: int, attempt: int = 0) -> ResultsSink:
    return ResultsSink(stream.address, stream.id, partition, attempt)


def send(stream, partition: int, *batches: pa.RecordBatch, attempt: int = 0, commit: bool = True) -> None:
    """Be a task that ends, or dies before its commit."""
    with sink_of(stream, partition, attempt) as sink:
        for batch in batches:
            sink.send(batch)
        if commit:
            sink.commit()


def rows(batches) -> Counter:
    return Counter(row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True))


def test_rows_come_while_the_tasks_run(stream):
    """Each batch before the next is sent, in its schema; the end comes when the job is over."""
    with sink_of(stream, 0) as sink:
        for number in range(3):
            sink.send(batch_of(0, number))
            assert next(stream) == batch_of(0, number)
        sink.commit()
    stream.finish()
    assert list(stream) == []


def test_a_killed_task_is_run_again_without_a_row_twice(stream):
    """kill -9 after some rows have come: the next attempt gives only the others, in its own order."""
    ours, theirs = SPAWN.Pipe()
    victim = SPAWN.Process(target=tasks.send_part, args=(stream.address, stream.id, 5, 400, theirs))
    victim.start()
    assert ours.poll(PATIENCE) and ours.recv() == 400
    first = next(stream)
    assert first.num_rows == 400
    victim.kill()
    victim.join(PATIENCE)
    send(stream, 5, batch_of(5, 2).slice(0, 700), attempt=1, commit=False)  # dies as well
    send(stream, 5, *(batch_of(5, 3).slice(low, 90) for low in range(0, 1000, 90)), attempt=3)
    stream.finish()
    assert rows([first, *stream]) == rows([batch_of(5, 0)])


def test_a_partition_that_is_there_is_not_wanted_again(stream):
    """Its task need not compute it; if it does, nothing comes twice."""
    with sink_of(stream, 0) as sink:
        assert sink.wanted
    send(stream, 0, batch_of(0, 0))
    with sink_of(stream, 0, 1) as sink:
        assert not sink.wanted
    send(stream, 0, batch_of(0, 5), attempt=2)
    stream.finish()
    assert rows(stream) == rows([batch_of(0, 0)])


def test_tasks_hear_what_is_preferred(stream):
    """Those that run, also while they are being answered, and those that start later; the latest counts."""
    key = Column(ColumnRef("r", "k"))
    wanted = [(Compare("=", key, Literal(n, pa.int64()), pa.int64()),) for n in (1, 2)]
    with sink_of(stream, 0) as sink:
        assert sink.preferred is None
        stream.prefer(wanted[0])
        sink.commit()  # its answer comes behind what was said before
        assert sink.preferred == wanted[0]
    stream.prefer(wanted[1])
    with sink_of(stream, 1) as sink:
        assert sink.wanted and sink.preferred == wanted[1] and sink.preferred is sink.preferred
        sink.send(batch_of(1, 0))
        sink.commit()
    stream.finish()
    assert rows(stream) == rows([batch_of(1, 0)])


def test_rows_that_come_early_are_marked_and_not_counted(stream):
    """Another attempt may have shown others; what is there already is shown no more."""
    with sink_of(stream, 0) as sink:
        sink.send(batch_of(0, 1), EarlyRows)
        assert EARLY in next(stream).schema.metadata
    send(stream, 0, batch_of(0, 0), attempt=1)
    with sink_of(stream, 0, 2) as sink:
        sink.send(batch_of(0, 2), EarlyRows)
    stream.finish()
    assert rows(stream) == rows([batch_of(0, 0)])


def test_tasks_wait_for_a_slow_consumer(server):
    """Not much more than what the stream may hold is taken from them; all of it comes in the end."""
    stream = server.open(SCHEMA, most_waiting=100_000)
    sent = 0
    batch = batch_of(0, 0, 10_000)

    def task() -> None:
        nonlocal sent
        with sink_of(stream, 0) as sink:
            for _ in range(400):  # 64 MB, more than all buffers on the way
                sink.send(batch)
                sent += 1
            sink.commit()
        stream.finish()

    with ThreadPoolExecutor() as pool:
        running = pool.submit(task)
        taken = [next(stream)]
        session = server._streams[stream.id]
        while not session.is_full:
            pass
        assert session._arrived - session._taken < 100_000 + 2 * batch.nbytes
        assert sent < 400 and not running.done()
        taken += list(stream)
        running.result(PATIENCE)
    assert pa.Table.from_batches(taken) == pa.Table.from_batches([batch] * 400)


def send_for_ever(stream) -> None:
    """Be a task with more rows than a stream takes."""
    with sink_of(stream, 0) as sink:
        while True:
            sink.send(batch_of(0, 0, 10_000))


@pytest.mark.parametrize("full", [True, False])
def test_a_closed_stream_stops_its_tasks(server, full):
    """Also one that waits for the consumer: it hears that nobody wants its rows."""
    stream = server.open(SCHEMA, most_waiting=1 if full else 1 << 30)
    running = ThreadPoolExecutor().submit(send_for_ever, stream)
    next(stream)
    stream.close()
    with pytest.raises(ExecutionError, match="takes no more rows: the reader has closed it"):
        running.result(PATIENCE)
    with pytest.raises(ExecutionError, match="has ended"):
        sink_of(stream, 1)
    assert list(stream) == []
    stream.fail(ValueError("the job was cancelled"))
    assert list(stream) == []
    assert stream.id not in server._streams


def test_a_job_that_fails_fails_the_stream(stream):
    """At once, also while the consumer waits, and whatever has come so far."""
    send(stream, 0, batch_of(0, 0), commit=False)
    next(stream)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, stream)
        stream.fail(RuntimeError("task 3 failed four times"))
        with pytest.raises(RuntimeError, match="four times"):
            waiting.result(PATIENCE)
    with pytest.raises(RuntimeError, match="four times"):
        next(stream)
    with pytest.raises(ExecutionError, match="has ended"):
        sink_of(stream, 0)


def test_a_job_that_ends_without_all_rows_is_an_error(stream):
    """A task that never committed is named, however it went away."""
    send(stream, 7, batch_of(7, 0), commit=False)
    send(stream, 8, batch_of(8, 0))
    stream.finish()
    with pytest.raises(ExecutionError, match=r"7$"):
        list(stream)


def test_rows_that_change_between_attempts_are_an_error(stream):
    """The consumer has seen rows that the second attempt does not have."""
    send(stream, 0, batch_of(0, 0), commit=False)
    with pytest.raises(ExecutionError, match="takes no more rows"):
        send(stream, 0, batch_of(1, 0), attempt=1)
    with pytest.raises(ExecutionError, match="partition 0"):
        list(stream)


def test_a_full_disk_is_an_error_that_says_what_to_do(stream, monkeypatch):
    """To the consumer, and to the tasks."""

    def full(self, payload):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("millrace.spark.results.Partition._keep", full)
    with pytest.raises(ExecutionError, match="has failed"):
        send(stream, 0, batch_of(0, 0))
    with pytest.raises(ExecutionError, match="No space left"):
        next(stream)


def test_large_batches_are_sent_in_pieces(stream, monkeypatch):
    """Together these have all rows; a batch without rows is not sent, and too large a row cannot be."""
    with monkeypatch.context() as patch:
        patch.setattr(codec, "LARGEST_ATTACHMENT", 100)
        with pytest.raises(ExecutionError, match="a row of the result takes"):
            send(stream, 0, batch_of(0, 0, 1))
    monkeypatch.setattr(codec, "USUAL_ATTACHMENT", 10_000)
    send(stream, 0, batch_of(0, 0, 100_000), batch_of(0, 0, 0), attempt=1)
    stream.finish()
    taken = list(stream)
    assert len(taken) > 100 and rows(taken) == rows([batch_of(0, 0, 100_000)])


def test_rows_much_larger_than_their_neighbours_are_sent_in_more_pieces(server, monkeypatch):
    """What a piece takes is known when it is made: an average says nothing of its rows."""
    monkeypatch.setattr(codec, "LARGEST_ATTACHMENT", 5_000)
    monkeypatch.setattr(codec, "USUAL_ATTACHMENT", 2_000)
    batch = pa.record_batch({"text": ["x"] * 500 + ["x" * 2_000] * 8 + ["x"] * 500})
    with server.open(batch.schema) as opened:
        send(opened, 0, batch)
        opened.finish()
        assert pa.Table.from_batches(list(opened)) == pa.table(batch)


def test_other_columns_are_an_error(stream):
    """Names or types; but a column may be nullable or not."""
    with pytest.raises(ExecutionError, match="v int64"):
        send(stream, 0, pa.record_batch({"v": [1]}))
    fields = [field.with_nullable(False) for field in SCHEMA]
    send(stream, 0, batch_of(0, 0).cast(pa.schema(fields)))
    assert next(stream).schema == SCHEMA


def test_dictionaries_travel(server):
    """A batch brings along the values that its codes stand for."""
    batches = [pa.record_batch({"d": pa.array(some).dictionary_encode()}) for some in (["a", "b"], ["c"])]
    stream = server.open(batches[0].schema)
    send(stream, 0, *batches)
    stream.finish()
    assert [batch.to_pydict() for batch in stream] == [{"d": ["a", "b"]}, {"d": ["c"]}]


def test_a_wrong_token_and_an_unknown_stream_are_refused(server, stream):
    """The error says which; the token of a coordinator of the same process does not help."""
    coordinator = Coordinator()
    for token in ("0" * 32, coordinator.address.token):
        wrong = replace(stream.address, token=token)
        with pytest.raises(ExecutionError, match="wrong token"):
            ResultsSink(wrong, stream.id, 0, 0)
    coordinator.close()
    with pytest.raises(ExecutionError, match="'x'"):
        ResultsSink(server.address_of("x"), "x", 0, 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x02{}",
        frame(Batch(b"x")),
        frame(Start(0, 0)) + frame(Start(1, 0)),
        frame(Start(-1, 0)),
        frame(Start(0, 0)) + frame(Batch(b"abc")),
        frame(Start(0, 0)) + b"\xff" * 50,
    ],
)
def test_a_task_that_talks_nonsense_is_shown_out(stream, garbage):
    """The partition is sent by another attempt."""
    hello = frame(JoinStream(stream.address.token, stream.id))
    assert b"Welcome" in raw(stream.address, hello, garbage)
    send(stream, 0, batch_of(0, 0))
    stream.finish()
    assert rows(stream) == rows([batch_of(0, 0)])


def test_a_server_that_ends_is_noticed_on_both_sides(server):
    """The consumer and the tasks get errors, and nobody waits for ever."""
    stream = server.open(SCHEMA)
    with sink_of(stream, 0) as sink:
        server.close()
        with pytest.raises(ExecutionError, match=r"was lost|takes no more rows"):
            sink.commit()
    with pytest.raises(ExecutionError, match="server of results has been closed"):
        next(stream)
    with pytest.raises(ExecutionError, match=r"cannot reach .*, where the job's results are kept"):
        sink_of(stream, 0)
    with pytest.raises(ExecutionError, match="has been closed"):
        server.open(SCHEMA)
    stream.close()


def test_a_reader_that_pauses_breaks_no_connection(server, monkeypatch):
    """The kernel gives up what is not acknowledged, also where the other side only reads nothing for long."""
    monkeypatch.setattr("millrace.limits.codec._UNREAD_MS", 100)
    stream = server.open(SCHEMA, most_waiting=1)
    sent = [batch_of(0, 0, 1_000_000)] * 3
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, stream, 0, *sent)
        sending.add_done_callback(lambda _: stream.finish())
        assert not wait([sending], 1.5).done
        assert sum(batch.num_rows for batch in stream) == 3_000_000
        sending.result(PATIENCE)


def test_a_reader_that_pauses_for_too_long_stops_the_tasks(server):
    """They end with an error instead of waiting for ever, and so does the reader, which says what to set."""
    stream = server.open(SCHEMA, most_waiting=1000, idle=0.2)
    with pytest.raises(ExecutionError, match=r"no more rows|was lost"):
        send_for_ever(stream)
    with pytest.raises(ExecutionError, match="idle_timeout"):
        next(stream)
