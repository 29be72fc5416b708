"""The lines of result files, and which lines of the input have a result."""

import json
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from symphony_runtime.gateway.batches.inner_requests import InnerAnswer
from symphony_runtime.gateway.batches.lines import Line
from symphony_runtime.gateway.batches.records import Progress, Tokens
from symphony_runtime.gateway.http.context import compact, to_json

WINDOW_LINES = 1_024  # from the first line without a result to the last one that has begun
EXPIRED = ("batch_expired", "the batch expired before this request was run")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a line; `status` None: the request was not run."""

    number: int
    data: bytes  # a line of a result file
    status: int | None
    usage: Tokens = field(default_factory=Tokens)

    @property
    def failed(self) -> bool:
        return self.status != 200


def answered(batch_id: str, line: Line, custom_id: str, found: InnerAnswer) -> Result:
    """Return the result of a request that was answered with JSON."""
    body, used = found.body, found.usage
    if b"\n" in body:
        body = to_json(json.loads(body))
    request_id = found.run_id or _request_id(batch_id, line)
    head = f'{{"id":{compact(_request_id(batch_id, line))},"custom_id":{compact(custom_id)}'
    response = (
        f',"response":{{"status_code":{found.status},"request_id":{compact(request_id)},"body":'
    )
    data = (head + response).encode() + body + b'},"error":null}\n'
    tokens = Tokens(used.prompt, used.cached, used.completion, used.reasoning)
    return Result(line.number, data, found.status, tokens)


def not_run(batch_id: str, line: Line, custom_id: str, reason: tuple[str, str]) -> Result:
    """Return the result of a request that was not run; `reason`: code and message."""
    document = {
        "id": _request_id(batch_id, line),
        "custom_id": custom_id,
        "response": None,
        "error": {"code": reason[0], "message": reason[1]},
    }
    return Result(line.number, to_json(document) + b"\n", None)


def _request_id(batch_id: str, line: Line) -> str:
    return f"batch_req_{batch_id.removeprefix('batch_')}{line.number:05d}"


class Frontier:
    """Tells how far a batch is: the first line without a result, and later ones with one."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._done = set(progress.done)
        self._begun: deque[Line] = deque()  # from the first line without a result on

    def has_result(self, number: int) -> bool:
        return number in self._done

    def is_full(self, number: int) -> bool:
        """Return whether a line has to wait for the results of earlier ones."""
        return bool(self._begun) and number - self._begun[0].number >= WINDOW_LINES

    def begin(self, line: Line) -> None:
        """Note the next line, whether it has a result or not."""
        self._begun.append(replace(line, data=None))

    def add(self, results: Collection[Result]) -> Progress:
        """Return the progress with some results more."""
        completed, failed = self.progress.completed, self.progress.failed
        for result in results:
            self._done.add(result.number)
            completed += result.status == 200
            failed += result.status not in (200, None)
        each = [self.progress.usage, *(result.usage for result in results)]
        usage = Tokens(*map(sum, zip(*each, strict=True)))
        line, start = self.progress.line, self.progress.start
        while self._begun and self._begun[0].number in self._done:
            first = self._begun.popleft()
            self._done.remove(first.number)
            line, start = first.number + 1, first.end
        done = tuple(sorted(self._done))
        self.progress = Progress(line, start, done, completed, failed, usage)
        return self.progress
