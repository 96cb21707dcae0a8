"""Networks of other domains of a few lines each, which `wide_networks.py` exports.

Detection (a YOLO with its decoding, heads behind RoiAlign, suppression of boxes), restoration
(RCAN, NAFNet), graphs (GCN, GAT, DGCNN), point clouds (PointNet++), time series (N-BEATS, a
mixer, temporal fusion), tables (FT-Transformer, DCN, two towers), state spaces (S4D by Fourier
transforms, a selective scan), splines (KAN), volumes (V-Net), videos (SlowFast), lines of text
(SVTR) and sound (Demucs, EnCodec). `NETWORKS` has a function for each that makes the module, then
its inputs by name. Needs `pip install torch torchvision`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[Any, dict[str, Tensor]]


def normalized(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution, normalized, with SiLU."""
    convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.SiLU())


class SplitBottlenecks(nn.Module):
    """YOLO's C2f: half of the channels through bottlenecks, each of whose results is kept."""

    def __init__(self, before: int, after: int, count: int, adds: bool):
        super().__init__()
        half = after // 2
        self.adds = adds
        self.first = normalized(before, after, 1)
        self.inner = nn.ModuleList(
            [nn.Sequential(normalized(half, half), normalized(half, half)) for _ in range(count)]
        )
        self.last = normalized((2 + count) * half, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.first(x).chunk(2, 1))
        for inner in self.inner:
            result = inner(kept[-1])
            kept.append(kept[-1] + result if self.adds else result)
        return self.last(torch.cat(kept, 1))


class PooledPyramid(nn.Module):
    """YOLO's SPPF: the same maximum three times over."""

    def __init__(self, width: int):
        super().__init__()
        self.first = normalized(width, width // 2, 1)
        self.last = normalized(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for _ in range(3):
            kept.append(functional.max_pool2d(kept[-1], 5, 1, 2))
        return self.last(torch.cat(kept, 1))


class YOLO(nn.Module):
    """Boxes and classes at three scales; sides of boxes are means over 16 bins (DFL)."""

    def __init__(self, width: int = 16, classes: int = 80, side: int = 320, suppress: bool = False):
        super().__init__()
        self.suppress = suppress
        widths = [width * 2**level for level in range(5)]
        self.stem = normalized(3, widths[0], 3, 2)
        self.stages = nn.ModuleList(
            [
                nn.Sequential(normalized(a, b, 3, 2), SplitBottlenecks(b, b, count, True))
                for (a, b), count in zip(pairwise(widths), (1, 2, 2, 1), strict=True)
            ]
        )
        self.pyramid = PooledPyramid(widths[-1])
        w3, w4, w5 = widths[2:]
        self.up = nn.ModuleList(
            [SplitBottlenecks(w4 + w5, w4, 1, False), SplitBottlenecks(w3 + w4, w3, 1, False)]
        )
        self.smaller = nn.ModuleList([normalized(w3, w3, 3, 2), normalized(w4, w4, 3, 2)])
        self.down = nn.ModuleList(
            [SplitBottlenecks(w3 + w4, w4, 1, False), SplitBottlenecks(w4 + w5, w5, 1, False)]
        )
        self.boxes = nn.ModuleList([self.head(w, 64, 64) for w in widths[2:]])
        self.classes = nn.ModuleList([self.head(w, max(w3, classes), classes) for w in widths[2:]])
        self.register_buffer("bins", torch.arange(16.0).reshape(1, 16, 1, 1))
        centres, strides = [], []
        for stride in (8, 16, 32):
            line = torch.arange(side // stride) + 0.5
            y, x = torch.meshgrid(line, line, indexing="ij")
            centres.append(torch.stack([x, y]).reshape(2, -1))
            strides.append(torch.full((1, line.numel() ** 2), float(stride)))
        self.register_buffer("centres", torch.cat(centres, 1)[None])
        self.register_buffer("strides", torch.cat(strides, 1))

    @staticmethod
    def head(before: int, width: int, after: int) -> nn.Sequential:
        """Two convolutions, then one for what is told."""
        return nn.Sequential(
            normalized(before, width), normalized(width, width), nn.Conv2d(width, after, 1)
        )

    def forward(self, x: Tensor) -> Any:
        x, scales = self.stem(x), []
        for stage in self.stages:
            scales.append(x := stage(x))
        p3, p4, p5 = scales[1], scales[2], self.pyramid(scales[3])
        p4 = self.up[0](torch.cat([functional.interpolate(p5, scale_factor=2.0), p4], 1))
        p3 = self.up[1](torch.cat([functional.interpolate(p4, scale_factor=2.0), p3], 1))
        p4 = self.down[0](torch.cat([self.smaller[0](p3), p4], 1))
        p5 = self.down[1](torch.cat([self.smaller[1](p4), p5], 1))
        levels = list(zip((p3, p4, p5), self.boxes, self.classes, strict=True))
        sides = torch.cat([boxes(p).flatten(2) for p, boxes, _ in levels], 2)
        scores = torch.cat([classes(p).flatten(2) for p, _, classes in levels], 2).sigmoid()
        bins = sides.reshape(x.shape[0], 4, 16, -1).transpose(1, 2).softmax(1)
        near, far = (bins * self.bins).sum(1).chunk(2, 1)
        first, last = self.centres - near, self.centres + far
        if not self.suppress:
            places = torch.cat([(first + last) / 2, last - first], 1) * self.strides
            return torch.cat([places, scores], 1)
        from torchvision.ops import nms

        boxes = (torch.cat([first, last], 1) * self.strides)[0].t()
        best, kinds = scores[0].max(0)
        chosen = nms(boxes, best, 0.5)[:100]
        return boxes[chosen], best[chosen], kinds[chosen]


class RegionHeads(nn.Module):
    """Mask R-CNN's heads: boxes of a picture's features, aligned, classified and masked."""

    def __init__(self, width: int = 64, classes: int = 21):
        super().__init__()
        self.features = nn.Sequential(
            normalized(3, 32, 3, 2), normalized(32, width, 3, 2), normalized(width, width, 3, 2)
        )
        self.boxes = nn.Sequential(
            nn.Flatten(), nn.Linear(width * 49, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        )
        self.scores = nn.Linear(256, classes)
        self.shifts = nn.Linear(256, 4 * classes)
        self.masks = nn.Sequential(
            *[normalized(width, width) for _ in range(4)],
            nn.ConvTranspose2d(width, width, 2, 2),
            nn.ReLU(),
            nn.Conv2d(width, classes, 1),
        )

    def forward(self, x: Tensor, boxes: Tensor) -> Any:
        from torchvision.ops import roi_align

        features = self.features(x)
        centres, sizes = boxes.sigmoid().chunk(2, 1)
        boxes = torch.cat([centres * 200, centres * 200 + 10 + sizes * 40], 1)
        pooled = roi_align(features, [boxes], 7, 1 / 8, 2, True)
        hidden = self.boxes(pooled)
        masks = self.masks(roi_align(features, [boxes], 14, 1 / 8, 2, True))
        return self.scores(hidden).softmax(-1), self.shifts(hidden), masks.sigmoid()


class ChannelAttention(nn.Module):
    """A block of RCAN: two convolutions, whose channels are weighed by their means."""

    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.weighs = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 16, 1),
            nn.ReLU(),
            nn.Conv2d(width // 16, width, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return x + hidden * self.weighs(hidden)


class RCAN(nn.Module):
    """Twice as many pixels a side, by weighed channels."""

    def __init__(self, width: int = 64, blocks: int = 6):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*[ChannelAttention(width) for _ in range(blocks)])
        self.last = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.blocks(x))


class ChannelNorm(nn.Module):
    """Layer normalization of each pixel's channels."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, width, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return (x - mean) / (variance + 1e-6).sqrt() * self.weight + self.bias


class GatedBlock(nn.Module):
    """A block of NAFNet: products of halves are all that is not linear."""

    def __init__(self, width: int):
        super().__init__()
        self.norms = nn.ModuleList([ChannelNorm(width), ChannelNorm(width)])
        self.wide = nn.Conv2d(width, 2 * width, 1)
        self.depthwise = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.weighs = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.narrow = nn.Conv2d(width, width, 1)
        self.feed = nn.Conv2d(width, 2 * width, 1)
        self.fed = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.depthwise(self.wide(self.norms[0](x))).chunk(2, 1)
        gated = a * b
        x = x + self.narrow(gated * self.weighs(gated))
        a, b = self.feed(self.norms[1](x)).chunk(2, 1)
        return x + self.fed(a * b)


class NAFNet(nn.Module):
    """A picture without its noise, at three scales."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        widths = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList([GatedBlock(w) for w in widths])
        self.smaller = nn.ModuleList([nn.Conv2d(w, 2 * w, 2, 2) for w in widths[:-1]])
        self.larger = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(w, 2 * w, 1), nn.PixelShuffle(2)) for w in widths[1:]]
        )
        self.up = nn.ModuleList([GatedBlock(w) for w in widths[:-1]])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden, kept = self.first(x), []
        for level, block in enumerate(self.down):
            hidden = block(hidden)
            if level < 2:
                kept.append(hidden)
                hidden = self.smaller[level](hidden)
        for level in (1, 0):
            hidden = self.up[level](self.larger[level](hidden) + kept[level])
        return x + self.last(hidden)


def added(messages: Tensor, end: Tensor, nodes: int) -> Tensor:
    """Sums of what edges (edges, ...) bring to the nodes where they end."""
    places = end.reshape(-1, *[1] * (messages.ndim - 1)).expand_as(messages)
    return torch.zeros(nodes, *messages.shape[1:]).scatter_add(0, places, messages)


class GCN(nn.Module):
    """Classes of nodes: each layer adds up what edges bring, by degrees."""

    def __init__(self, width: int = 128, classes: int = 16):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges[0], edges[1]
        degrees = torch.ones(x.shape[0]).scatter_add(0, end, torch.ones(edges.shape[1])).rsqrt()
        factors = (degrees[start] * degrees[end])[:, None]
        for layer in self.layers:
            hidden = layer(x)
            summed = added(hidden[start] * factors, end, x.shape[0])
            x = functional.relu(summed + hidden * (degrees * degrees)[:, None])
        return self.head(x)


class GAT(nn.Module):
    """Classes of nodes: edges of a node are weighed by a softmax over them."""

    def __init__(self, width: int = 32, heads: int = 4, classes: int = 16):
        super().__init__()
        self.heads = heads
        self.values = nn.ModuleList([nn.Linear(64, width * heads), nn.Linear(width * heads, 128)])
        self.near = nn.ParameterList([torch.randn(1, heads, width) * 0.1 for _ in range(2)])
        self.far = nn.ParameterList([torch.randn(1, heads, width) * 0.1 for _ in range(2)])
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges[0], edges[1]
        for linear, near, far in zip(self.values, self.near, self.far, strict=True):
            hidden = linear(x).reshape(x.shape[0], self.heads, -1)
            scores = (hidden * near).sum(-1)[start] + (hidden * far).sum(-1)[end]
            scores = functional.leaky_relu(scores, 0.2)
            places = end[:, None].expand_as(scores)
            nodes = torch.full((x.shape[0], self.heads), -1e9)
            most = nodes.scatter_reduce(0, places, scores, "amax")
            weights = (scores - most[end]).exp()
            sums = torch.zeros_like(nodes).scatter_add(0, places, weights)
            weights = (weights / (sums[end] + 1e-9))[:, :, None]
            summed = added(hidden[start] * weights, end, x.shape[0])
            x = functional.elu(summed.flatten(1))
        return self.head(x)


def neighbours(x: Tensor, count: int) -> Tensor:
    """Of each point (batch, points, channels) the places of the nearest, by squared distances."""
    lengths = (x * x).sum(-1, keepdim=True)
    distances = lengths - 2 * x @ x.transpose(1, 2) + lengths.transpose(1, 2)
    return distances.topk(count, -1, largest=False)[1]


class DGCNN(nn.Module):
    """Kinds of objects: edges to the nearest points, found again in each layer's features."""

    def __init__(self, classes: int = 40, count: int = 16):
        super().__init__()
        self.count = count
        widths = (3, 64, 64, 128)
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(2 * a, b, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
                for a, b in pairwise(widths)
            ]
        )
        self.head = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes))

    def forward(self, x: Tensor) -> Tensor:
        points, kept = x[0], []
        for layer in self.layers:
            near = neighbours(points[None], self.count)[0]
            here = points[:, None].expand(-1, self.count, -1)
            edges = torch.cat([points[near] - here, here], -1).permute(2, 0, 1)[None]
            points = layer(edges).max(-1)[0][0].t()
            kept.append(points)
        return self.head(torch.cat(kept, -1).max(0)[0])


class PointNet2(nn.Module):
    """PointNet++: groups of near points around chosen ones, twice, then all together."""

    def __init__(self, classes: int = 40):
        super().__init__()
        self.first = self.layers(6, 64, 128)
        self.second = self.layers(131, 128, 256)
        self.last = self.layers(259, 256, 512)
        self.head = nn.Linear(512, classes)

    @staticmethod
    def layers(*widths: int) -> nn.Sequential:
        """The same for every point."""
        made: list[nn.Module] = []
        for before, after in pairwise(widths):
            made += [nn.Conv2d(before, after, 1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*made)

    @staticmethod
    def grouped(places: Tensor, features: Tensor, keep: int, count: int) -> tuple[Tensor, Tensor]:
        """Chosen points, and of each the nearest ones with their features."""
        chosen = places[:: places.shape[0] // keep]
        distances = (chosen[:, None] - places[None]).pow(2).sum(-1)
        near = distances.topk(count, -1, largest=False)[1]
        group = torch.cat([places[near] - chosen[:, None], features[near]], -1)
        return chosen, group.permute(2, 0, 1)[None]

    def forward(self, x: Tensor) -> Tensor:
        places = x[0]
        places, group = self.grouped(places, places, 256, 32)
        features = self.first(group).max(-1)[0][0].t()
        places, group = self.grouped(places, features, 64, 32)
        features = self.second(group).max(-1)[0][0].t()
        whole = torch.cat([places, features], -1).t()[None, :, :, None]
        return self.head(self.last(whole).flatten(2).max(-1)[0])


class NBeats(nn.Module):
    """A forecast by blocks, each of which explains what those before left."""

    def __init__(self, past: int = 240, future: int = 48, width: int = 256, blocks: int = 8):
        super().__init__()
        self.past = past
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Linear(past, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, past + future))
                for _ in range(blocks)
            ]
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        result = torch.zeros(1)
        for block in self.blocks:
            told = block(x)
            x = x - told[:, : self.past]
            result = result + told[:, self.past :]
        return result


class TSMixer(nn.Module):
    """A forecast by linear layers over time and over channels in turns."""

    def __init__(self, past: int = 512, future: int = 96, channels: int = 21, blocks: int = 4):
        super().__init__()
        self.times = nn.ModuleList([nn.Linear(past, past) for _ in range(blocks)])
        self.features = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(channels, 64), nn.ReLU(), nn.Linear(64, channels))
                for _ in range(blocks)
            ]
        )
        self.norms = nn.ModuleList([nn.LayerNorm([past, channels]) for _ in range(2 * blocks)])
        self.head = nn.Linear(past, future)

    def forward(self, x: Tensor) -> Tensor:
        for index, (time, feature) in enumerate(zip(self.times, self.features, strict=True)):
            mixed = time(self.norms[2 * index](x).transpose(1, 2)).relu().transpose(1, 2)
            x = x + mixed
            x = x + feature(self.norms[2 * index + 1](x))
        return self.head(x.transpose(1, 2)).transpose(1, 2)


class GatedResidual(nn.Module):
    """What temporal fusion transformers put everywhere: a gated branch, added and normalized."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, 2 * width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + functional.glu(self.layers(x), -1))


class TemporalFusion(nn.Module):
    """A forecast: variables chosen by weights, an LSTM, attention to what came before."""

    def __init__(self, variables: int = 8, width: int = 64, heads: int = 4):
        super().__init__()
        self.each = nn.ModuleList([nn.Linear(1, width) for _ in range(variables)])
        self.refined = nn.ModuleList([GatedResidual(width) for _ in range(variables)])
        self.choice = nn.Linear(variables * width, variables)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.after = GatedResidual(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.last = GatedResidual(width)
        self.quantiles = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        embedded = [linear(x[:, :, i : i + 1]) for i, linear in enumerate(self.each)]
        weights = self.choice(torch.cat(embedded, -1)).softmax(-1)
        refined = [layer(e) for layer, e in zip(self.refined, embedded, strict=True)]
        chosen = (torch.stack(refined, -1) * weights[:, :, None]).sum(-1)
        hidden = self.after(self.recurrent(chosen)[0] + chosen)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        attended = self.attention(hidden, hidden, hidden, attn_mask=later, need_weights=False)[0]
        return self.quantiles(self.last(hidden + attended))


class FTTransformer(nn.Module):
    """A row of a table as tokens: numbers times vectors, and embedded categories."""

    def __init__(self, numbers: int = 20, categories: int = 10, width: int = 64, layers: int = 3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.bias = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.embedding = nn.Embedding(categories * 1000, width)
        self.register_buffer("offsets", torch.arange(categories) * 1000)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(width, 8, 2 * width, activation="gelu",
                                           batch_first=True, norm_first=True)
                for _ in range(layers)
            ]
        )  # fmt: skip
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        numbers = x[:, :, None] * self.weight + self.bias
        first = self.first.expand(x.shape[0], -1, -1)
        hidden = torch.cat([first, numbers, self.embedding(ids + self.offsets)], 1)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden[:, 0])


class DCN(nn.Module):
    """What someone will click: crosses of all features, and layers beside."""

    def __init__(self, categories: int = 26, embedded: int = 16, numbers: int = 13):
        super().__init__()
        self.embedding = nn.Embedding(categories * 1000, embedded)
        self.register_buffer("offsets", torch.arange(categories) * 1000)
        width = categories * embedded + numbers
        self.crosses = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.deep = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        self.head = nn.Linear(width + 128, 1)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        features = torch.cat([x, self.embedding(ids + self.offsets).flatten(1)], 1)
        crossed = features
        for cross in self.crosses:
            crossed = features * cross(crossed) + crossed
        return self.head(torch.cat([crossed, self.deep(features)], 1)).sigmoid()


class TwoTowers(nn.Module):
    """Scores of many things for one who looked at others: means of embeddings, two towers."""

    def __init__(self, things: int = 20000, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(things, width)
        self.queries = self.tower(width)
        self.keys = self.tower(width)

    @staticmethod
    def tower(width: int) -> nn.Sequential:
        """Two layers."""
        return nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, width))

    def forward(self, seen: Tensor, offered: Tensor) -> Any:
        mask = (seen > 0).float()[:, :, None]
        mean = (self.embedding(seen) * mask).sum(1) / mask.sum(1).clamp(min=1)
        queries = functional.normalize(self.queries(mean), dim=-1)
        keys = functional.normalize(self.keys(self.embedding(offered)), dim=-1)
        return (queries @ keys.t() * 20).topk(20, -1)


class S4D(nn.Module):
    """A long sequence by diagonal state spaces: convolutions as long as it, by FFTs."""

    def __init__(self, width: int = 64, length: int = 1024, layers: int = 3, states: int = 16):
        super().__init__()
        self.length = length
        self.first = nn.Linear(1, width)
        kernels = []
        for _ in range(layers):
            decay = -0.5 * torch.exp(torch.rand(width, states, 1))
            turn = math.pi * torch.arange(states)[None, :, None]
            step = torch.exp(torch.rand(width, 1, 1) * 3 - 7)
            powers = torch.exp(torch.complex(decay, turn.expand_as(decay)) * step
                               * torch.arange(length))  # fmt: skip
            factors = torch.randn(width, states, 1, dtype=torch.complex64)
            kernels.append(2 * (factors * powers * step).sum(1).real)
        self.kernels = nn.ParameterList(kernels)
        self.skips = nn.ParameterList([torch.randn(width, 1) for _ in range(layers)])
        self.mixed = nn.ModuleList([nn.Conv1d(width, 2 * width, 1) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for kernel, skip, mix, norm in zip(
            self.kernels, self.skips, self.mixed, self.norms, strict=True
        ):
            turned = x.transpose(1, 2)
            spectrum = torch.fft.rfft(turned, n=2 * self.length)
            seen = torch.fft.rfft(kernel, n=2 * self.length)
            hidden = torch.fft.irfft(spectrum * seen, n=2 * self.length)[..., : self.length]
            hidden = functional.gelu(hidden + turned * skip)
            x = norm(x + functional.glu(mix(hidden), 1).transpose(1, 2))
        return self.head(x.mean(1))


@torch.jit.script
def selective_scan(decays: Tensor, added: Tensor, read: Tensor) -> Tensor:
    """States of (channels, states) that fade and grow step by step; what is read of each."""
    state = torch.zeros_like(added[0])
    results = torch.zeros(added.shape[0], added.shape[1])
    for step in range(added.shape[0]):
        state = state * decays[step] + added[step]
        results[step] = (state * read[step]).sum(-1)
    return results


class Mamba(nn.Module):
    """A sequence by state spaces whose steps depend on what comes in; the scan is a loop."""

    def __init__(self, width: int = 64, states: int = 16, layers: int = 2, steps: int = 128):
        super().__init__()
        inner = 2 * width
        self.states, self.rank, self.steps = states, width // 16, steps
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.wide = nn.ModuleList([nn.Linear(width, 2 * inner, bias=False) for _ in range(layers)])
        self.near = nn.ModuleList(
            [nn.Conv1d(inner, inner, 4, padding=3, groups=inner) for _ in range(layers)]
        )
        told = self.rank + 2 * states
        self.told = nn.ModuleList([nn.Linear(inner, told, bias=False) for _ in range(layers)])
        self.times = nn.ModuleList([nn.Linear(self.rank, inner) for _ in range(layers)])
        self.logs = nn.ParameterList(
            [torch.log(torch.arange(1.0, states + 1)).repeat(inner, 1) for _ in range(layers)]
        )
        self.skips = nn.ParameterList([torch.ones(inner) for _ in range(layers)])
        self.narrow = nn.ModuleList([nn.Linear(inner, width, bias=False) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for index, norm in enumerate(self.norms):
            hidden, gate = self.wide[index](norm(x)).chunk(2, -1)
            near = self.near[index](hidden.transpose(1, 2))[..., : self.steps]
            hidden = functional.silu(near).transpose(1, 2)[0]
            times, write, read = self.told[index](hidden).split(
                [self.rank, self.states, self.states], -1
            )
            times = functional.softplus(self.times[index](times))
            decays = torch.exp(times[:, :, None] * -self.logs[index].exp())
            added = times[:, :, None] * write[:, None] * hidden[:, :, None]
            result = selective_scan(decays, added, read[:, None]) + hidden * self.skips[index]
            x = x + self.narrow[index](result[None] * functional.silu(gate))
        return x


class KAN(nn.Module):
    """Sums of functions of each input, which are cubic splines."""

    def __init__(self, widths: tuple[int, ...] = (64, 64, 64, 10), cells: int = 5):
        super().__init__()
        knots = torch.arange(-3, cells + 4) * (2 / cells) - 1
        self.register_buffer("knots", knots)
        self.plain = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        self.splines = nn.ModuleList(
            [nn.Linear(a * (cells + 3), b, bias=False) for a, b in pairwise(widths)]
        )

    def bases(self, x: Tensor) -> Tensor:
        """The cubic splines that do not vanish anywhere on the knots (Cox and de Boor)."""
        x, knots = x[..., None], self.knots
        bases = ((x >= knots[:-1]) & (x < knots[1:])).float()
        for k in (1, 2, 3):
            left = (x - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1])
            right = (knots[k + 1 :] - x) / (knots[k + 1 :] - knots[1:-k])
            bases = left * bases[..., :-1] + right * bases[..., 1:]
        return bases.flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        for plain, spline in zip(self.plain, self.splines, strict=True):
            x = plain(functional.silu(x)) + spline(self.bases(x.tanh()))
        return x


class VNet(nn.Module):
    """Segmentation of volumes at three scales, with PReLU and strided convolutions."""

    def __init__(self, width: int = 16):
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.first = nn.Conv3d(1, width, 5, padding=2)
        self.down = nn.ModuleList([self.block(w, w) for w in widths])
        self.smaller = nn.ModuleList([nn.Conv3d(w, 2 * w, 2, 2) for w in widths[:-1]])
        self.larger = nn.ModuleList([nn.ConvTranspose3d(2 * w, w, 2, 2) for w in widths[:-1]])
        self.up = nn.ModuleList([self.block(2 * w, w) for w in widths[:-1]])
        self.last = nn.Conv3d(width, 2, 1)

    @staticmethod
    def block(before: int, after: int) -> nn.Sequential:
        """A convolution, normalized."""
        convolution = nn.Conv3d(before, after, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm3d(after), nn.PReLU(after))

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for level, block in enumerate(self.down):
            x = x + block(x)
            if level < 2:
                kept.append(x)
                x = self.smaller[level](x)
        for level in (1, 0):
            x = self.up[level](torch.cat([self.larger[level](x), kept[level]], 1))
        return self.last(x).softmax(1)


class SlowFast(nn.Module):
    """A video at two rates; the fast one has few channels and joins the slow one."""

    def __init__(self, slow: int = 32, fast: int = 8, classes: int = 50):
        super().__init__()
        self.slow = nn.ModuleList([self.block(3, slow, 1, 5), self.block(slow + 2 * fast, 64, 1)])
        self.fast = nn.ModuleList([self.block(3, fast, 5, 5), self.block(fast, 2 * fast, 3)])
        self.joined = nn.Conv3d(fast, 2 * fast, (5, 1, 1), (4, 1, 1), (2, 0, 0))
        self.head = nn.Linear(64 + 2 * fast, classes)

    @staticmethod
    def block(before: int, after: int, frames: int, side: int = 3) -> nn.Sequential:
        """A convolution of half as many pixels a side, normalized."""
        pads = (frames // 2, side // 2, side // 2)
        return nn.Sequential(
            nn.Conv3d(before, after, (frames, side, side), (1, 2, 2), pads, bias=False),
            nn.BatchNorm3d(after),
            nn.ReLU(),
            nn.Conv3d(after, after, (1, 3, 3), padding=(0, 1, 1)),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        slow, fast = self.slow[0](x[:, :, ::4]), self.fast[0](x)
        slow = self.slow[1](torch.cat([slow, self.joined(fast)], 1))
        fast = self.fast[1](fast)
        means = [part.mean((2, 3, 4)) for part in (slow, fast)]
        return self.head(torch.cat(means, 1))


class SVTR(nn.Module):
    """A line of text as patches, mixed near them and over the line; halves of its height."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256), classes: int = 97):
        super().__init__()
        self.stem = nn.Sequential(normalized(3, 32, 3, 2), normalized(32, widths[0], 3, 2))
        self.near = nn.ModuleList(
            [nn.Conv2d(widths[0], widths[0], 3, padding=1, groups=8) for _ in range(2)]
        )
        self.attended = nn.ModuleList(
            [
                nn.ModuleList(
                    [
                        nn.TransformerEncoderLayer(w, w // 32, 4 * w, activation="gelu",
                                                   batch_first=True)
                        for _ in range(2)
                    ]
                )
                for w in widths[1:]
            ]
        )  # fmt: skip
        self.merges = nn.ModuleList([nn.Conv2d(a, b, 3, (2, 1), 1) for a, b in pairwise(widths)])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for near in self.near:
            x = x + functional.gelu(near(x))
        for merge, layers in zip(self.merges, self.attended, strict=True):
            x = merge(x)
            batch, channels, height, width = x.shape
            tokens = x.flatten(2).transpose(1, 2)
            for layer in layers:
                tokens = layer(tokens)
            x = tokens.transpose(1, 2).reshape(batch, channels, height, width)
        return self.head(x.mean(2).transpose(1, 2)).log_softmax(-1)


class Demucs(nn.Module):
    """Sources of a song: strided convolutions with gates, an LSTM, and the way back."""

    def __init__(self, width: int = 32, levels: int = 4, sources: int = 2):
        super().__init__()
        widths = [1, *(width * 2**level for level in range(levels))]
        self.down = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv1d(a, b, 8, 4, 2), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1)
                )
                for a, b in pairwise(widths)
            ]
        )
        self.recurrent = nn.LSTM(widths[-1], widths[-1] // 2, 2, bidirectional=True)
        ends = [sources, *widths[1:]]
        self.up = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv1d(b, 2 * b, 3, padding=1), nn.GLU(1), nn.ConvTranspose1d(b, a, 8, 4, 2)
                )
                for a, b in pairwise(ends)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level in self.down:
            kept.append(x := level(x))
        x = self.recurrent(x.permute(2, 0, 1))[0].permute(1, 2, 0)
        for level in reversed(range(len(kept))):
            x = self.up[level](x + kept[level])
            x = functional.relu(x) if level else x
        return x


class EnCodec(nn.Module):
    """Sound to codes: convolutions with ELU, an LSTM, and what is nearest in four books."""

    def __init__(self, width: int = 32, ratios: tuple[int, ...] = (2, 4, 5), books: int = 4):
        super().__init__()
        self.first = nn.Conv1d(1, width, 7, padding=3)
        self.residual, self.smaller = nn.ModuleList(), nn.ModuleList()
        for ratio in ratios:
            self.residual.append(
                nn.Sequential(
                    nn.ELU(), nn.Conv1d(width, width // 2, 3, padding=1), nn.ELU(),
                    nn.Conv1d(width // 2, width, 1))
            )  # fmt: skip
            self.smaller.append(nn.Conv1d(width, 2 * width, 2 * ratio, ratio, (ratio + 1) // 2))
            width *= 2
        self.recurrent = nn.LSTM(width, width, 2)
        self.last = nn.Conv1d(width, 128, 7, padding=3)
        self.books = nn.ParameterList([torch.randn(1024, 128) for _ in range(books)])

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        for residual, smaller in zip(self.residual, self.smaller, strict=True):
            x = smaller(functional.elu(x + residual(x)))
        steps = x.permute(2, 0, 1)
        left = self.last(functional.elu(self.recurrent(steps)[0] + steps).permute(1, 2, 0))
        left, codes = left[0].t(), []
        for book in self.books:
            distances = left.pow(2).sum(1, keepdim=True) - 2 * left @ book.t() + book.pow(2).sum(1)
            codes.append(nearest := distances.argmin(-1))
            left = left - book[nearest]
        return torch.stack(codes), left


class Hourglass(nn.Module):
    """Hourglasses of a pose with heat maps, whose largest places are told (soft arg-max)."""

    def __init__(self, width: int = 64, joints: int = 17):
        super().__init__()
        self.stem = nn.Sequential(normalized(3, width, 7, 2), normalized(width, width, 3, 2))
        self.down = nn.ModuleList([normalized(width, width) for _ in range(3)])
        self.across = nn.ModuleList([normalized(width, width) for _ in range(3)])
        self.up = nn.ModuleList([normalized(width, width) for _ in range(3)])
        self.heat = nn.Conv2d(width, joints, 1)
        self.register_buffer("line", torch.linspace(0, 1, 48))

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.stem(x), []
        for down, across in zip(self.down, self.across, strict=True):
            kept.append(across(x))
            x = down(functional.max_pool2d(x, 2))
        for up, beside in zip(self.up, reversed(kept), strict=True):
            larger = functional.interpolate(up(x), scale_factor=2.0, mode="bilinear")
            x = larger + beside
        heat = self.heat(x).flatten(2).softmax(-1).reshape(x.shape[0], 17, 48, 48)
        places = [(heat.sum(axis) * self.line).sum(-1) for axis in (2, 3)]
        return torch.stack(places, -1)


def of_noise(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Made]:
    """Makes a network, then noise for its only input."""
    return lambda: (make(), {"x": torch.randn(shape)})


def of_nodes(make: Callable[[], nn.Module]) -> Callable[[], Made]:
    """Makes a network of graphs, then 1000 nodes of 64 features and 8000 edges."""
    return lambda: (
        make(),
        {"x": torch.randn(1000, 64), "edges": torch.randint(0, 1000, (2, 8000))},
    )


def of_rows(make: Callable[[], nn.Module], numbers: int, categories: int) -> Callable[[], Made]:
    """Makes a network of tables, then 64 rows of numbers and categories."""
    return lambda: (
        make(),
        {"x": torch.randn(64, numbers), "ids": torch.randint(0, 1000, (64, categories))},
    )


def regions() -> Made:
    """Heads of a detector, and 32 boxes."""
    return RegionHeads(), {"x": torch.randn(1, 3, 256, 256), "boxes": torch.randn(32, 4)}


def towers() -> Made:
    """Two towers, eight who looked at up to 50 things, 2000 things to choose from."""
    seen = torch.randint(0, 20000, (8, 50)) * (torch.rand(8, 50) > 0.3)
    return TwoTowers(), {"seen": seen, "offered": torch.randint(1, 20000, (2000,))}


NETWORKS: dict[str, Callable[[], Made]] = {
    "yolov8": of_noise(YOLO, 1, 3, 320, 320),
    "yolov8_nms": of_noise(lambda: YOLO(suppress=True), 1, 3, 320, 320),
    "region_heads": regions,
    "rcan": of_noise(RCAN, 1, 3, 64, 64),
    "nafnet": of_noise(NAFNet, 1, 3, 128, 128),
    "gcn": of_nodes(GCN),
    "gat": of_nodes(GAT),
    "dgcnn": of_noise(DGCNN, 1, 512, 3),
    "pointnet2": of_noise(PointNet2, 1, 1024, 3),
    "nbeats": of_noise(NBeats, 16, 240),
    "tsmixer": of_noise(TSMixer, 1, 512, 21),
    "temporal_fusion": of_noise(TemporalFusion, 1, 96, 8),
    "ft_transformer": of_rows(FTTransformer, 20, 10),
    "dcn": of_rows(DCN, 13, 26),
    "two_towers": towers,
    "s4d": of_noise(S4D, 1, 1024, 1),
    "mamba": of_noise(Mamba, 1, 128, 64),
    "kan": of_noise(KAN, 64, 64),
    "vnet": of_noise(VNet, 1, 1, 32, 48, 48),
    "slowfast": of_noise(SlowFast, 1, 3, 16, 96, 96),
    "svtr": of_noise(SVTR, 1, 3, 32, 256),
    "demucs": of_noise(Demucs, 1, 1, 16384),
    "encodec": of_noise(EnCodec, 1, 1, 8000),
    "hourglass": of_noise(Hourglass, 1, 3, 192, 192),
}
"""Name to a function that makes the network, then its inputs by name."""
