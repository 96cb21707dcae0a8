"""Networks of a few lines each, as papers describe them, which `more_networks.py` exports.

Super-resolution (FSRCNN, EDSR, ESRGAN), a U-Net, sequences (temporal convolutions, LSTM, GRU,
CRNN), sound (Conv-TasNet, HiFi-GAN, a conformer), point clouds (PointNet), recommendations (DLRM)
and convolutions whose taps are moved (DCN). `NETWORKS` has a function for each that makes the
module, then its inputs by name. Needs `pip install torch torchvision`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class UNet(nn.Module):
    """Segmentation by four scales, each of which is handed over to its counterpart."""

    def __init__(self, channels: int = 3, width: int = 32, classes: int = 4):
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        before = [channels, *widths[:-1]]
        pairs = list(pairwise(widths))
        self.encoders = nn.ModuleList(
            [self.block(*sizes) for sizes in zip(before, widths, strict=True)]
        )
        self.enlarge = nn.ModuleList(
            [nn.ConvTranspose2d(below, here, 2, 2) for here, below in pairs]
        )
        self.decoders = nn.ModuleList([self.block(2 * here, here) for here in widths[:-1]])
        self.head = nn.Conv2d(width, classes, 1)
        self.pool = nn.MaxPool2d(2)

    @staticmethod
    def block(channels: int, width: int) -> nn.Module:
        """Two convolutions."""
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for encoder in self.encoders:
            x = encoder(self.pool(x) if kept else x)
            kept.append(x)
        for scale in (2, 1, 0):
            x = self.decoders[scale](torch.cat([self.enlarge[scale](x), kept[scale]], 1))
        return self.head(x)


class EDSR(nn.Module):
    """Twice as many pixels a side, by residual blocks without normalization."""

    def __init__(self, width: int = 64, blocks: int = 8, scale: int = 2):
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(width, width, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(width, width, 3, padding=1),
                )
                for _ in range(blocks)
            ]
        )
        self.spread = nn.Conv2d(width, width * scale * scale, 3, padding=1)
        self.shuffle = nn.PixelShuffle(scale)
        self.tail = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = hidden = self.head(x)
        for block in self.body:
            hidden = hidden + 0.1 * block(hidden)
        return self.tail(self.shuffle(self.spread(hidden + x)))


class FSRCNN(nn.Module):
    """Twice as many pixels a side, by a transposed convolution at the end."""

    def __init__(self, width: int = 56, inner: int = 12):
        super().__init__()
        layers = [nn.Conv2d(1, width, 5, padding=2), nn.PReLU(width)]
        layers += [nn.Conv2d(width, inner, 1), nn.PReLU(inner)]
        for _ in range(4):
            layers += [nn.Conv2d(inner, inner, 3, padding=1), nn.PReLU(inner)]
        layers += [nn.Conv2d(inner, width, 1), nn.PReLU(width)]
        layers += [nn.ConvTranspose2d(width, 1, 9, 2, 4, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ESRGAN(nn.Module):
    """Twice as many pixels a side, by dense residual blocks."""

    def __init__(self, width: int = 32, growth: int = 16, blocks: int = 3):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([self.block(width, growth) for _ in range(blocks)])
        self.enlarged = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    @staticmethod
    def block(width: int, growth: int) -> nn.ModuleList:
        """Five convolutions of all that came before in the block."""
        results = [growth] * 4 + [width]
        return nn.ModuleList(
            [
                nn.Conv2d(width + index * growth, result, 3, padding=1)
                for index, result in enumerate(results)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            *growing, last = block
            features = [x]
            for convolution in growing:
                features.append(functional.leaky_relu(convolution(torch.cat(features, 1)), 0.2))
            x = x + 0.2 * last(torch.cat(features, 1))
        x = self.enlarged(functional.interpolate(x, scale_factor=2))
        return self.last(functional.leaky_relu(x, 0.2))


class TemporalConvolutions(nn.Module):
    """A sequence by causal convolutions of five dilations (TCN)."""

    def __init__(self, channels: int = 16, width: int = 64, classes: int = 8):
        super().__init__()
        self.dilations = (1, 2, 4, 8, 16)
        self.levels = nn.ModuleList()
        for dilation in self.dilations:
            first = nn.Conv1d(channels, width, 3, dilation=dilation)
            second = nn.Conv1d(width, width, 3, dilation=dilation)
            self.levels.append(nn.ModuleList([first, second, nn.Conv1d(channels, width, 1)]))
            channels = width
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for dilation, (first, second, beside) in zip(self.dilations, self.levels, strict=True):
            past = (2 * dilation, 0)
            hidden = functional.relu(first(functional.pad(x, past)))
            hidden = functional.relu(second(functional.pad(hidden, past)))
            x = functional.relu(hidden + beside(x))
        return self.head(x.transpose(1, 2))


class Recurrent(nn.Module):
    """Two layers of LSTM or GRU."""

    def __init__(self, kind: str, both_ways: bool = False, width: int = 128):
        super().__init__()
        self.layers = getattr(nn, kind)(40, width, 2, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(width * (1 + both_ways), 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0])


class CRNN(nn.Module):
    """A line of text: convolutions, whose columns two layers of LSTM read both ways."""

    def __init__(self, classes: int = 96):
        super().__init__()
        self.convolutions = nn.Sequential(
            self.block(1, 64),
            nn.MaxPool2d(2),
            self.block(64, 128),
            nn.MaxPool2d(2),
            self.block(128, 256),
            self.block(256, 256),
            nn.MaxPool2d((2, 1)),
            self.block(256, 512),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(512, 512, 2),
        )
        self.recurrent = nn.LSTM(512, 256, 2, bidirectional=True)
        self.head = nn.Linear(512, classes)

    @staticmethod
    def block(channels: int, width: int) -> nn.Module:
        """A convolution, normalized."""
        convolution = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        columns = self.convolutions(x).squeeze(2).permute(2, 0, 1)
        return self.head(self.recurrent(columns)[0])


class ConvTasNet(nn.Module):
    """Two voices apart, by masks over learned spectra; six dilated blocks."""

    def __init__(self, spectrum: int = 256, width: int = 128, inner: int = 256):
        super().__init__()
        self.encoder = nn.Conv1d(1, spectrum, 16, 8, bias=False)
        self.norm = nn.GroupNorm(1, spectrum)
        self.narrow = nn.Conv1d(spectrum, width, 1)
        self.blocks = nn.ModuleList([self.block(width, inner, 2**level) for level in range(6)])
        self.masks = nn.Conv1d(width, 2 * spectrum, 1)
        self.decoder = nn.ConvTranspose1d(spectrum, 1, 16, 8, bias=False)

    @staticmethod
    def block(width: int, inner: int, dilation: int) -> nn.Module:
        """A depthwise convolution between two pointwise ones."""
        return nn.Sequential(
            nn.Conv1d(width, inner, 1),
            nn.PReLU(),
            nn.GroupNorm(1, inner),
            nn.Conv1d(inner, inner, 3, padding=dilation, dilation=dilation, groups=inner),
            nn.PReLU(),
            nn.GroupNorm(1, inner),
            nn.Conv1d(inner, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        spectra = functional.relu(self.encoder(x))
        hidden = self.narrow(self.norm(spectra))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        masks = torch.sigmoid(self.masks(hidden)).reshape(2, -1, spectra.shape[-1])
        return self.decoder(masks * spectra)


class HiFiGAN(nn.Module):
    """Sound from a spectrogram: transposed convolutions, three dilated branches behind each."""

    def __init__(self, width: int = 128):
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.enlarge = nn.ModuleList()
        self.branches = nn.ModuleList()
        for stride, kernel in ((8, 16), (8, 16), (4, 8)):
            half = width // 2
            self.enlarge.append(
                nn.ConvTranspose1d(width, half, kernel, stride, (kernel - stride) // 2)
            )
            self.branches.append(nn.ModuleList([self.branch(half, taps) for taps in (3, 7, 11)]))
            width = half
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    @staticmethod
    def branch(width: int, taps: int) -> nn.ModuleList:
        """Convolutions of three dilations."""
        return nn.ModuleList(
            [
                nn.Conv1d(width, width, taps, padding=(taps - 1) // 2 * dilation, dilation=dilation)
                for dilation in (1, 3, 5)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for enlarge, branches in zip(self.enlarge, self.branches, strict=True):
            x = enlarge(functional.leaky_relu(x, 0.1))
            x = sum(self.refined(x, branch) for branch in branches) / 3
        return torch.tanh(self.last(functional.leaky_relu(x)))

    def refined(self, x: Tensor, branch: nn.ModuleList) -> Tensor:
        """With what each convolution of a branch adds."""
        for convolution in branch:
            x = x + convolution(functional.leaky_relu(x, 0.1))
        return x


class ConformerLayer(nn.Module):
    """Attention and a depthwise convolution between two halves of a feed-forward network."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.feed_before = self.feed_forward(width)
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.convolution_norm = nn.LayerNorm(width)
        self.gated = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.pointwise = nn.Conv1d(width, width, 1)
        self.feed_after = self.feed_forward(width)
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def feed_forward(width: int) -> nn.Module:
        """Two layers, normalized before."""
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_before(x)
        x = x + self.attention(self.attention_norm(x))
        hidden = functional.glu(self.gated(self.convolution_norm(x).transpose(1, 2)), 1)
        hidden = functional.silu(self.batch_norm(self.depthwise(hidden)))
        x = x + self.pointwise(hidden).transpose(1, 2)
        return self.norm(x + 0.5 * self.feed_after(x))

    def attention(self, x: Tensor) -> Tensor:
        """Of each step to all; heads have 36 elements."""
        batch, steps, _ = x.shape
        parts = self.queries_keys_values(x).reshape(batch, steps, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(queries @ keys.transpose(-1, -2) / 6.0, -1)
        return self.attended((weights @ values).transpose(1, 2).reshape(batch, steps, -1))


class Conformer(nn.Module):
    """An encoder of speech: a quarter of the frames, then layers."""

    def __init__(self, width: int = 144, layers: int = 6, heads: int = 4):
        super().__init__()
        self.quarter = nn.Sequential(
            nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
        )
        self.frames = nn.Linear(width * 19, width)
        self.layers = nn.ModuleList([ConformerLayer(width, heads) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.quarter(x)
        batch, channels, steps, bands = x.shape
        x = self.frames(x.permute(0, 2, 1, 3).reshape(batch, steps, channels * bands))
        for layer in self.layers:
            x = layer(x)
        return x


class PointNet(nn.Module):
    """Parts of an object: each point, beside the largest features of all points."""

    def __init__(self, classes: int = 50):
        super().__init__()
        self.features = self.layers(3, 64, 128, 1024)
        self.together = self.layers(1152, 512, 256, 128)
        self.head = nn.Conv1d(128, classes, 1)

    @staticmethod
    def layers(*widths: int) -> nn.Sequential:
        """The same for every point."""
        made: list[nn.Module] = []
        for before, after in pairwise(widths):
            made += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
        return nn.Sequential(*made)

    def forward(self, x: Tensor) -> Tensor:
        near = self.features[:6](x)
        most = self.features[6:](near).max(-1, keepdim=True)[0].expand(-1, -1, x.shape[-1])
        return self.head(self.together(torch.cat([near, most], 1)))


class DLRM(nn.Module):
    """What someone will choose, by products of numbers and embedded categories in pairs."""

    def __init__(self, categories: int = 8, width: int = 32):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(1000, width) for _ in range(categories)])
        self.numbers = nn.Sequential(
            nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        pairs = torch.tril_indices(categories + 1, categories + 1, -1)
        self.top = nn.Sequential(
            nn.Linear(width + pairs.shape[1], 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
        )
        self.register_buffer("pairs", pairs)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        embedded = [embed(ids[:, column]) for column, embed in enumerate(self.embeddings)]
        features = torch.stack([self.numbers(x), *embedded], 1)
        products = (features @ features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([features[:, 0], products], 1))


class Deformable(nn.Module):
    """Three residual blocks of a modulated deformable convolution (DCN v2)."""

    def __init__(self, width: int = 32, taps: int = 9):
        super().__init__()
        from torchvision.ops import DeformConv2d

        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.moves = nn.ModuleList([nn.Conv2d(width, 3 * taps, 3, padding=1) for _ in range(3)])
        self.blocks = nn.ModuleList([DeformConv2d(width, width, 3, padding=1) for _ in range(3)])
        self.taps = taps

    def forward(self, x: Tensor) -> Tensor:
        y = functional.silu(self.stem(x))
        for moves, block in zip(self.moves, self.blocks, strict=True):
            offsets, masks = moves(y).split([2 * self.taps, self.taps], 1)
            y = y + functional.silu(block(y, offsets, masks.sigmoid()))
        return y


def of_noise(make: Callable[[], nn.Module], *shape: int) -> Callable[[], tuple[Any, dict]]:
    """Makes a network, then noise for its only input."""
    return lambda: (make(), {"x": torch.randn(shape)})


def recommendations() -> tuple[Any, dict[str, Tensor]]:
    """DLRM, and 64 rows of numbers and categories."""
    network = DLRM()
    return network, {"x": torch.randn(64, 13), "ids": torch.randint(0, 1000, (64, 8))}


NETWORKS: dict[str, Callable[[], tuple[Any, dict[str, Tensor]]]] = {
    "unet2d": of_noise(UNet, 1, 3, 192, 192),
    "edsr": of_noise(EDSR, 1, 3, 96, 96),
    "fsrcnn": of_noise(FSRCNN, 1, 1, 180, 320),
    "esrgan": of_noise(ESRGAN, 1, 3, 128, 128),
    "tcn": of_noise(TemporalConvolutions, 1, 16, 512),
    "lstm": of_noise(lambda: Recurrent("LSTM"), 1, 200, 40),
    "bilstm": of_noise(lambda: Recurrent("LSTM", both_ways=True), 4, 100, 40),
    "gru": of_noise(lambda: Recurrent("GRU"), 1, 200, 40),
    "crnn": of_noise(CRNN, 1, 1, 32, 160),
    "convtasnet": of_noise(ConvTasNet, 1, 1, 8000),
    "hifigan": of_noise(HiFiGAN, 1, 80, 40),
    "conformer": of_noise(Conformer, 1, 1, 400, 80),
    "pointnet": of_noise(PointNet, 1, 3, 1024),
    "dlrm": recommendations,
    "dcn": of_noise(Deformable, 1, 3, 96, 96),
}
"""Name to a function that makes the network, then its inputs by name."""
