"""Convolutions, matrix products and their gradients as loop nests: the one place that understands layouts, padding and groups.

`nests` says what a loop nest is, `recover` finds the nest of one execution, `layers` finds the logical layers of a whole structure
(a convolution between SpaceToBatchND and BatchToSpaceND is one dilated convolution). The mapping exporters only spell the result.
`work` divides a trace into what they are given and what is left; `sources` says which layer each operand comes from.
"""

from fathom_trace.loops.layers import Layer, layers, logical_macs
from fathom_trace.loops.nests import Axis, ConvolutionNest, Gemm, GemmNest, LoopNest, nest_from_json
from fathom_trace.loops.recover import examine, is_unknown, loop_nest
from fathom_trace.loops.sources import Source, operand_names, operand_sources, operand_tensors
from fathom_trace.loops.work import Work, find_work

__all__ = [
    "Axis",
    "ConvolutionNest",
    "Gemm",
    "GemmNest",
    "Layer",
    "LoopNest",
    "Source",
    "Work",
    "examine",
    "find_work",
    "is_unknown",
    "layers",
    "logical_macs",
    "loop_nest",
    "nest_from_json",
    "operand_names",
    "operand_sources",
    "operand_tensors",
]
