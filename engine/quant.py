"""Which quantisation a model file is in, by the name people know it by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.header import Tensor, Value

#: Of `general.file_type`; files that are mixed on purpose are named after their mixture.
_FILE_TYPES = {
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
}
_GUESSED = 1024  # a flag in the number: the converter was not told the type

#: Of a tensor's type.
_TENSOR_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
    42: "Q2_0",
}


def quant_of(header: Mapping[str, Value], tensors: Iterable[Tensor]) -> str:
    """The type the header names. Without one, or with one that is not quantised, which converters also write
    where they do not know, the type that most bytes are of; "" for a model without tensors.
    """
    named = header.get("general.file_type")
    if isinstance(named, int) and (name := _FILE_TYPES.get(named & ~_GUESSED)):
        return name
    sizes: dict[int, int] = {}
    for tensor in tensors:
        sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.size
    return _TENSOR_TYPES[max(sizes, key=lambda kind: sizes[kind])] if sizes else ""
