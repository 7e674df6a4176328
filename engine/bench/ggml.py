"""ggml through ctypes: just enough to multiply matrices on the CPU as llama.cpp does.

Handles of native objects are plain addresses. What a context manager owns goes when it is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import NativeError
from engine.kernels import REINSTALL, load_library, native_build
from engine.prototypes import Prototype, declare
from engine.threads import BARRIER_SPINS

F32, I32 = 0, 26  # enum ggml_type
TYPES = {  # those with weights; the values are part of the GGUF format and never change
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "MXFP4": 39,
}
_SUCCESS = 0  # enum ggml_status
_GRAPH_NODES = 2048  # GGML_DEFAULT_GRAPH_SIZE


class _InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


_SILENT = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(lambda *_: None)  # a ggml_log_callback

_BASE: dict[str, Prototype] = {
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_buffer_get_base": (c_void_p, [c_void_p]),
    "ggml_backend_buffer_get_size": (c_size_t, [c_void_p]),
    "ggml_backend_buft_name": (c_char_p, [c_void_p]),
    "ggml_backend_dev_buffer_type": (c_void_p, [c_void_p]),
    "ggml_backend_dev_supports_op": (c_bool, [c_void_p, c_void_p]),
    "ggml_backend_free": (None, [c_void_p]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    "ggml_backend_reg_dev_get": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_tensor_alloc": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_free": (None, [c_void_p]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_graph_overhead": (c_size_t, []),
    "ggml_init": (c_void_p, [_InitParams]),
    "ggml_log_get": (None, [POINTER(c_void_p)] * 2),
    "ggml_log_set": (None, [c_void_p] * 2),
    "ggml_mul_mat": (c_void_p, [c_void_p] * 3),
    "ggml_mul_mat_id": (c_void_p, [c_void_p] * 4),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_new_tensor": (c_void_p, [c_void_p, c_int, c_int, POINTER(c_int64)]),
    "ggml_quantize_chunk": (
        c_size_t,
        [c_int, POINTER(c_float), c_void_p, c_int64, c_int64, c_int64, POINTER(c_float)],
    ),
    "ggml_row_size": (c_size_t, [c_int, c_int64]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_type_name": (c_char_p, [c_int]),
}
_CPU: dict[str, Prototype] = {
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_cpu_reg": (c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    "ggml_backend_cpu_set_use_ref": (None, [c_void_p, c_bool]),
}


class Library:
    """ggml as it is installed. A process can hold one only: a second would be the first again."""

    def __init__(self) -> None:
        os.environ.setdefault("GOMP_SPINCOUNT", str(BARRIER_SPINS))  # as the engine does, and read once
        build = native_build()
        cpu = load_library(build.backend)
        base = load_library(build.folder / "libggml-base.so")
        try:
            self._functions = declare(base, _BASE) | declare(cpu, _CPU)
        except AttributeError as error:
            raise NativeError(f"ggml cannot be used: {error}", hint=REINSTALL) from error
        registry = self.call("ggml_backend_cpu_reg")
        self.device: int = self.call("ggml_backend_reg_dev_get", registry, 0)
        self._extra = self.call(
            "ggml_backend_reg_get_proc_address", registry, b"ggml_backend_dev_get_extra_bufts"
        )

    def call(self, name: str, *arguments: Any) -> Any:
        return self._functions[name](*arguments)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """What ggml logs in between is dropped; then whoever listened before listens again."""
        callback, data = c_void_p(), c_void_p()
        self.call("ggml_log_get", callback, data)
        self.call("ggml_log_set", ctypes.cast(_SILENT, c_void_p), None)
        try:
            yield
        finally:
            self.call("ggml_log_set", callback, data)

    def has_type(self, name: str) -> bool:
        """Whether this ggml knows the type `name` of TYPES: given a number it does not know, it aborts."""
        found: bytes | None = self.call("ggml_type_name", TYPES[name])
        return found is not None and found.decode().upper() == name

    def plain_buffers(self) -> int:
        """The buffer type that keeps weights as they are in a file."""
        kind: int = self.call("ggml_backend_dev_buffer_type", self.device)
        return kind

    def buffers(self) -> list[int]:
        """The buffer types a loader tries for weights on the CPU, in its order; the plain one is the last."""
        extra: list[int] = []
        if self._extra:
            listed = ctypes.CFUNCTYPE(POINTER(c_void_p), c_void_p)(self._extra)(self.device)
            while listed and listed[len(extra)]:
                extra.append(listed[len(extra)])
        return [*extra, self.plain_buffers()]

    def buffer_name(self, kind: int) -> str:
        name: bytes = self.call("ggml_backend_buft_name", kind)
        return name.decode()

    def buffers_for(self, name: str, *shape: int) -> list[int]:
        """The buffer types that can hold weights of this type and ggml shape; a loader takes the first.

        Asked as llama.cpp's loader asks: about a product with 512 rows, operands without memory. Weights of
        three dimensions are experts.
        """
        usable = []
        for kind in self.buffers():
            with Context(self, 4) as context:
                weights = context.tensor(TYPES[name], *shape)
                context.allocate(kind)  # never written, so it takes no pages
                if len(shape) == 2:
                    product = context.product(weights, context.tensor(F32, shape[0], 512))
                else:
                    ids = context.tensor(I32, 1, 512)
                    product = context.product(weights, context.tensor(F32, shape[0], 1, 512), ids)
                if self.supports(product):
                    usable.append(kind)
        return usable

    def supports(self, product: int) -> bool:
        """Whether the CPU can compute `product` from the buffers its operands lie in."""
        answer: bool = self.call("ggml_backend_dev_supports_op", self.device, product)
        return answer

    def quantize(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """`values` [rows, width] in the type `name`: [rows, bytes]."""
        values = np.ascontiguousarray(values, dtype=np.float32)
        rows, width = values.shape
        row_size = self.call("ggml_row_size", TYPES[name], width)
        packed = np.empty((rows, row_size), dtype=np.uint8)
        source = values.ctypes.data_as(POINTER(c_float))
        written = self.call(
            "ggml_quantize_chunk", TYPES[name], source, packed.ctypes.data, 0, rows, width, None
        )
        assert written == packed.nbytes
        return packed


class Context:
    """Tensors, the graphs over them and the buffers they lie in."""

    def __init__(self, library: Library, tensors: int, *, graphs: int = 0) -> None:
        self._library = library
        self._buffers: list[int] = []
        size = tensors * library.call("ggml_tensor_overhead") + graphs * library.call("ggml_graph_overhead")
        self._context = library.call("ggml_init", _InitParams(size, None, True))
        if not self._context:
            raise NativeError("ggml has no memory for a context")

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for buffer in self._buffers:
            self._library.call("ggml_backend_buffer_free", buffer)
        self._buffers.clear()
        self._library.call("ggml_free", self._context)
        self._context = None

    def tensor(self, kind: int, *shape: int) -> int:
        """A new tensor of the ggml type `kind`, `shape` in ggml's order: the width of a row first."""
        dimensions = (c_int64 * len(shape))(*shape)
        tensor: int = self._library.call("ggml_new_tensor", self._context, kind, len(shape), dimensions)
        return tensor

    def product(self, weights: int, rows: int, experts: int | None = None) -> int:
        """`weights` times `rows`; with `experts`, for each row by the matrices of the experts it names."""
        result: int
        if experts is None:
            result = self._library.call("ggml_mul_mat", self._context, weights, rows)
        else:
            result = self._library.call("ggml_mul_mat_id", self._context, weights, rows, experts)
        return result

    def graph(self, results: Sequence[int]) -> int:
        assert len(results) <= _GRAPH_NODES // 2  # operands take places too
        graph: int = self._library.call("ggml_new_graph", self._context)
        for result in results:
            self._library.call("ggml_build_forward_expand", graph, result)
        return graph

    def allocate(self, buffers: int | None = None) -> int:
        """Memory of a buffer type (plain if not given) for every tensor that has none; the buffer."""
        kind = self._library.plain_buffers() if buffers is None else buffers
        buffer: int | None = self._library.call(
            "ggml_backend_alloc_ctx_tensors_from_buft", self._context, kind
        )
        if not buffer:
            raise NativeError("ggml has no memory for tensors", hint="close other programs")
        self._buffers.append(buffer)
        return buffer

    def overlay(self, results: Iterable[int], place: int, buffer: int) -> None:
        """Lets all `results` lie where `place` lies in `buffer`: each is overwritten by the next."""
        library = self._library
        address = library.call("ggml_get_data", place)
        for result in results:
            assert library.call("ggml_nbytes", result) <= library.call("ggml_nbytes", place)
            if library.call("ggml_backend_tensor_alloc", buffer, result, address) != _SUCCESS:
                raise NativeError("ggml cannot place a tensor")

    def write(self, tensor: int, values: npt.NDArray[Any]) -> None:
        """Fills `tensor` in C order; a buffer that repacks weights does so here."""
        values = np.ascontiguousarray(values)
        assert values.nbytes == self._library.call("ggml_nbytes", tensor)
        with self._library.silence():  # the debug lines of a repacking
            self._library.call("ggml_backend_tensor_set", tensor, values.ctypes.data, 0, values.nbytes)

    def read(self, tensor: int, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """A copy of an F32 tensor, `shape` in C order."""
        values = np.empty(shape, dtype=np.float32)
        assert values.nbytes == self._library.call("ggml_nbytes", tensor)
        self._library.call("ggml_backend_tensor_get", tensor, values.ctypes.data, 0, values.nbytes)
        return values

    def memory(self, buffer: int) -> npt.NDArray[np.int64]:
        """The bytes of `buffer` in place, good as long as this context lives."""
        base = self._library.call("ggml_backend_buffer_get_base", buffer)
        size = self._library.call("ggml_backend_buffer_get_size", buffer)
        return np.ctypeslib.as_array((c_int64 * (size // 8)).from_address(base))


class Backend:
    """The CPU backend with so many threads, its kernels exact for a row whatever stands beside it, or not."""

    def __init__(self, library: Library, threads: int, *, exact: bool) -> None:
        self._library = library
        self._backend = library.call("ggml_backend_cpu_init")
        if not self._backend:
            raise NativeError("ggml's CPU backend does not start")
        self.set_threads(threads)
        library.call("ggml_backend_cpu_set_use_ref", self._backend, exact)

    def __enter__(self) -> Backend:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._library.call("ggml_backend_free", self._backend)
        self._backend = None

    def set_threads(self, threads: int) -> None:
        self._library.call("ggml_backend_cpu_set_n_threads", self._backend, threads)

    def compute(self, graph: int) -> None:
        status = self._library.call("ggml_backend_graph_compute", self._backend, graph)
        if status != _SUCCESS:
            raise NativeError(f"ggml failed to compute a graph, status {status}")
