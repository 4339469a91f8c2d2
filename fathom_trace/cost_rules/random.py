"""Random sampling. Random bits are integer work and count nothing; making numbers of the wanted distribution from them does."""

from __future__ import annotations

from fathom_trace.cost_rules.call import ALIAS, GENERATED, TENSORS, Call, none, rule

_BOX_MULLER = (
    "Box-Muller gives two from two uniform numbers (2): max with epsilon, logarithm, - 2, root, 2 pi u, sine, cosine, two products"
)


def _box_muller(call: Call) -> int:
    return (11 * call.elements() + 1) // 2


def _candidates(call: Call) -> int:
    """Sampled ids are output 0, their expected counts output 2, those of the true classes output 1."""
    return 4 * call.elements(0) + 10 * (call.elements(1) + call.elements(2))


RULES = (
    rule("RandomUniform StatefulUniform StatelessRandomUniform StatelessRandomUniformV2", "n", lambda c: c.elements(),
         "23 random bits become the fraction of a number in [1, 2), from which 1 is subtracted", GENERATED),
    rule("RandomUniformInt StatefulUniformInt StatelessRandomUniformInt StatelessRandomUniformIntV2", "2 n", lambda c: 2 * c.elements(),
         "low + bits modulo range", GENERATED),
    rule("StatefulUniformFullInt StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 NonDeterministicInts", "0", none,
         "random bits as they are", GENERATED),
    rule("RandomStandardNormal StatefulStandardNormal StatefulStandardNormalV2 StatelessRandomNormal StatelessRandomNormalV2",
         "11 n / 2, rounded up", _box_muller, _BOX_MULLER, GENERATED),
    rule("TruncatedNormal StatefulTruncatedNormal StatelessTruncatedNormal StatelessTruncatedNormalV2", "11 n / 2, rounded up, + 2 n",
         lambda c: _box_muller(c) + 2 * c.elements(), f"{_BOX_MULLER}; |x| < 2 (2). Rejected samples, 4.6%, are not counted", GENERATED),
    rule("LogUniformCandidateSampler", "4 sampled + 10 (sampled + true)", _candidates,
         "an id is exp(u log(range)) - 1 (4); an expected count has p = log((i + 2) / (i + 1)) / log(range) (5) and"
         " -expm1(tries log1p(-p)) (5). Samples drawn again because they repeat are not counted"),
    rule("RandomShuffle StatelessShuffle", "0", none, "rows are moved", TENSORS),
    rule("RngReadAndSkip RngSkip StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg", "0", none,
         "a counter's state of some bytes", ALIAS),
)  # fmt: skip
