"""A process that measures on demand: each line of JSON it reads is answered by one that it writes.

What is compared lives in processes of its own, because stock llama.cpp and ours are two libraries of one
name, and because a limit on memory holds for a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.bench.cgroup import MemoryGroup
from engine.errors import NativeError, S2Error

_END_S = 10.0  # until a process that was told to end is made to


class ChildEnded(NativeError):  # noqa: N818 -- as all errors here, it says what happened
    """The process is gone without an answer; `status` as in subprocess: an exit code, or minus a signal."""

    def __init__(self, name: str, status: int) -> None:
        how = f"exit code {status}" if status >= 0 else f"signal {-status}"
        super().__init__(f"{name} ended with {how}", hint="see above")
        self.status = status


class Child:
    """The parent's handle: `python -m MODULE ARGUMENTS` in another llama.cpp, or in a memory cgroup."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        library: Path | None = None,
        group: MemoryGroup | None = None,
    ) -> None:
        command = [sys.executable, "-I", "-m", module, *arguments]
        environment = {**os.environ, **({"LLAMA_CPP_LIB_PATH": str(library)} if library else {})}
        self._name = name
        self._process = subprocess.Popen(
            group.entering(command) if group else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, question: object = None) -> Any:
        """The answer to `question`. Raises what the process raised, or ChildEnded."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; the empty line below says so
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ChildEnded(self._name, self._process.wait())
        reply = json.loads(line)
        if "error" in reply:
            raise NativeError(f"{self._name}: {reply['error']}", hint=reply["hint"])
        return reply["answer"]

    def close(self) -> None:
        """Ends the process, one that is at work too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()  # whatever it is doing, nobody waits for it
        self.close()


def serve(prepare: Callable[[], Callable[[Any], object]]) -> None:
    """The other end: answers with what `prepare` returned until the parent has no more questions."""
    try:
        answer = prepare()
        for line in sys.stdin:
            print(json.dumps({"answer": answer(json.loads(line))}), flush=True)
    except S2Error as error:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)
        sys.exit(1)
