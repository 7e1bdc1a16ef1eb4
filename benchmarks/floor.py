"""The floor of a step: the time that its matrix products alone would take at this machine's best rate."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from grpobench.benchmarks.cases import BenchmarkCase

if TYPE_CHECKING:
    import torch

SECONDS: Final = 0.15
"""Seconds for the repeats of one pass over the weights; slow passes still get `LEAST` repeats."""
LEAST, MOST = 3, 50
MICRO_BATCH: Final = 1024
"""Rows of a micro-batch, which fit a CPU's caches better than all rows at once."""
SAME: Final = 4.0
"""Maximum error of another way, as a multiple of the error of torch's default products: both are sums of
float32 in some order. A way that rounds its factors to bfloat16 has thousands of times the error."""
NOT_IN_IT: Final = "attention, softmax, element-wise operations, sampling and the optimizer's update"

Pass = Literal["forward", "inputs", "weights"]
"""The products of a layer y = x·Wᵀ: y itself, the gradient of x, the gradient of W."""


@dataclass(frozen=True)
class MatrixProduct:
    """One kind of product of a step."""

    gflop: float
    seconds: float
    way: str
    """The implementation: `torch` as it is, or `onednn`."""


@dataclass(frozen=True)
class Floor:
    """Minimum seconds of a step's products by phase: `prefill`, `decode`, `forward`, `backward`.

    With P prompts of p tokens, G completions of c tokens each, W multiply-adds a token in the trunk's linear
    layers and V·H in the output head, a step needs this many FLOP:

        prefill     2·P·(p·W + V·H)                       each prompt once, its last state through the head
        decoding    2·(c − 1)·P·G·(W + V·H)               the last token of a completion is never fed
        training    3 · 2·(P·(p + G·(c − 1))·W + P·G·c·V·H)   forward, and two products backward for each

    Training also computes the prompt of a group once, and predicts the last token of a completion without
    reading it. In a mixture of experts W counts the experts that a token uses.

    The floor leaves out attention (scores, softmax, weighted sums), norms, rotary tables, activations, the
    embedding's look-up, the choice of tokens, the loss's softmax, the optimizer's update, and everything that
    is not arithmetic. So it is a lower bound that no step can reach. It is loose if attention is expensive
    (long sequences) and if models are very small."""

    parts: dict[str, MatrixProduct]

    @property
    def gflop(self) -> float:
        return sum(part.gflop for part in self.parts.values())

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts.values())

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "gflop": round(self.gflop, 3),
            "seconds": round(self.seconds, 5),
            "gflop_per_s": round(self.gflop / self.seconds, 1),
            "without": NOT_IN_IT,
            "phases": {
                name: {
                    "gflop": round(part.gflop, 3),
                    "seconds": round(part.seconds, 5),
                    "gflop_per_s": round(part.gflop / part.seconds, 1) if part.seconds else None,
                    "way": part.way,
                }
                for name, part in self.parts.items()
            },
        }


@dataclass(frozen=True)
class WeightMatrix:
    """A weight (out, in), which multiplies `share` of a pass's rows: all of them, or fewer for an expert."""

    weight: torch.Tensor
    share: float = 1.0

    def rows(self, rows: int) -> int:
        return max(1, math.ceil(rows * self.share))

    def flop(self, rows: float) -> float:
        """FLOP of one product with this many rows."""
        return 2.0 * rows * self.share * self.weight.numel()


def layers(model: Any) -> tuple[list[WeightMatrix], WeightMatrix]:
    """(the trunk's linear layers, the output head) of a causal language model. Experts are tensors (experts,
    out, in); each multiplies its share of the tokens."""
    from torch import nn

    trunk, config = model.base_model, model.config
    tables = {id(p) for m in trunk.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    trunk_layers = []
    for parameter in trunk.parameters():
        weight = parameter.detach()
        if weight.dim() == 2 and id(parameter) not in tables:
            trunk_layers.append(WeightMatrix(weight))
        elif weight.dim() == 3:
            used = getattr(config, "num_experts_per_tok", len(weight))
            trunk_layers += [WeightMatrix(expert, used / len(weight)) for expert in weight]
    return trunk_layers, WeightMatrix(model.get_output_embeddings().weight.detach())


@dataclass(frozen=True)
class PhaseRows:
    """How many rows a phase sends through trunk and head, and how often."""

    trunk: int
    head: int
    times: int = 1

    def flop(self, trunk: Sequence[WeightMatrix], head: WeightMatrix) -> float:
        flops = sum(layer.flop(self.trunk) for layer in trunk) + head.flop(self.head)
        return self.times * flops


def phases(case: BenchmarkCase) -> dict[str, PhaseRows]:
    """The rows of each forward phase; `backward` has twice the rows of `forward`."""
    packed = case.prompts * (case.prompt_tokens + case.group * (case.completion_tokens - 1))
    return {
        "prefill": PhaseRows(case.prompts * case.prompt_tokens, case.prompts),
        "decode": PhaseRows(case.rows, case.rows, case.completion_tokens - 1),
        "forward": PhaseRows(packed, case.rows * case.completion_tokens),
    }


def floor(case: BenchmarkCase, model: Any) -> Floor:
    """Measure a case's floor in this process, with its threads."""
    import torch

    with torch.no_grad():
        bench = Products(model)
        planned = phases(case)
        parts = {name: bench.part(planned[name], ("forward",)) for name in ("prefill", "decode", "forward")}
        parts["backward"] = bench.part(planned["forward"], ("inputs", "weights"))
    return Floor(parts)


class Products:
    """Times passes over all weights of a model, in every way that computes float32 products here.

    Rates are measured with the model's own weights, layer after layer, with as many rows as the case has: a
    decoding step has one row per completion, training has all packed tokens or a micro-batch's, whichever is
    faster here. Each pass is timed several times, and the fastest counts. If torch can use oneDNN for float32
    products, both ways are tried. A way whose error against float64 is larger than that of torch's default is
    not float32 and is left out."""

    def __init__(self, model: Any) -> None:
        self.trunk, self.head = layers(model)
        self.buffers: dict[tuple[str, int, int], torch.Tensor] = {}
        every = [*self.trunk, self.head]
        self.ways = [way for way in WAYS if way == "torch" or exact(way, every)]

    def part(self, rows: PhaseRows, passes: Sequence[Pass]) -> MatrixProduct:
        """A phase that makes these passes, with the fastest way for each."""
        seconds, ways = 0.0, dict[str, None]()
        for kind in passes:
            seconds_by_way = {way: self.seconds(rows, kind, way) for way in self.ways}
            best = min(seconds_by_way, key=lambda way: seconds_by_way[way])
            seconds += seconds_by_way[best]
            ways[best] = None
        gflop = len(passes) * rows.flop(self.trunk, self.head) / 1e9
        return MatrixProduct(gflop, rows.times * seconds, " and ".join(ways))

    def seconds(self, rows: PhaseRows, kind: Pass, way: str) -> float:
        """Seconds of one pass through trunk and head. Many rows may also be split, if that is faster."""
        total = 0.0
        with WAYS[way]():
            for weights, count in ((self.trunk, rows.trunk), ([self.head], rows.head)):
                pieces = {1, math.ceil(count / MICRO_BATCH)}
                total += min(n * self._timed(weights, math.ceil(count / n), kind) for n in pieces)
        return total

    def _timed(self, weights: Sequence[WeightMatrix], rows: int, kind: Pass) -> float:
        calls = [self._product(layer.weight, layer.rows(rows), kind) for layer in weights]

        def once() -> None:
            for call in calls:
                call()

        return fastest(once)

    def _product(self, weight: torch.Tensor, rows: int, kind: Pass) -> Callable[[], Any]:
        """One product, ready to be repeated, with memory for its result."""
        import torch

        outer, inner = weight.shape
        x, y = self._buffer("x", rows, inner, weight), self._buffer("y", rows, outer, weight)
        if kind == "forward":
            return lambda: torch.mm(x, weight.T, out=y)
        if kind == "inputs":
            return lambda: torch.mm(y, weight, out=x)
        gradient = self._buffer("g", outer, inner, weight)
        return lambda: torch.mm(y.T, x, out=gradient)

    def _buffer(self, name: str, rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        """Random numbers of ordinary size. Results that overwrite them stay finite long enough: a product is
        only timed, not used."""
        key = (name, rows, columns)
        if key not in self.buffers:
            self.buffers[key] = like.new_empty(rows, columns).uniform_(-1, 1)
        return self.buffers[key]


def fastest(call: Callable[[], None]) -> float:
    """Seconds of the fastest of several calls."""
    import torch

    gpu = torch.cuda.is_available()

    def timed() -> float:
        began = time.perf_counter()
        call()
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    timed()
    best, spent, made = math.inf, 0.0, 0
    while made < LEAST or (spent < SECONDS and made < MOST):
        seconds = timed()
        best, spent, made = min(best, seconds), spent + seconds, made + 1
    return best


@contextlib.contextmanager
def as_it_is() -> Iterator[None]:
    yield


@contextlib.contextmanager
def through_onednn() -> Iterator[None]:
    """Have oneDNN compute float32 products. If bfloat16 is requested and the processor has no such mode,
    oneDNN uses float32; otherwise it rounds, which `exact` detects."""
    import torch

    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


WAYS: Final = {"torch": as_it_is, "onednn": through_onednn}


def exact(way: str, weights: Sequence[WeightMatrix]) -> bool:
    """Whether products in this way are float32, and this way differs from torch's default."""
    import torch

    if weights[0].weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    for shape in {layer.weight.shape: layer.weight for layer in weights}.values():
        x = shape.new_empty(64, shape.shape[1]).uniform_(-1, 1)
        exact_product = x.double() @ shape.double().T
        usual = float((x @ shape.T - exact_product).abs().max())
        with WAYS[way]():
            largest_error = float((x @ shape.T - exact_product).abs().max())
        if largest_error > SAME * usual:
            return False
    return True
