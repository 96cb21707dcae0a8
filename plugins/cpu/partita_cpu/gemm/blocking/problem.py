"""A problem: the sizes of a convolution or product, and the layout of its input and output."""

from __future__ import annotations

from dataclasses import dataclass, replace

from partita.lowering.shapes.symbolic_size import Size


@dataclass(frozen=True)
class Images:
    """Sizes of a convolution over images with channels last; a matrix product is a 1x1 one.

    Attributes:
        batch: Images.
        height: Of the input.
        width: Of the input.
        channels: Of the input.
        outputs: Channels of the output.
        groups: Each connects its share of the channels with its share of the outputs.
        kernel: Taps down and across.
        stride: Between output pixels.
        dilation: Between taps.
        begin: Padding above and to the left.
        end: Padding below and to the right.
        out_height: Output pixels down.
        out_width: Output pixels across.
        slices: Slices under a window of a volume; then this is one slice of the result.
        covered: The first of them that is one of the input, and the one behind the last.
        slice_step: Elements of the input from one of them to the next.
        results: Slices of the result that are computed together.
        result_stride: Slices from the window of one of them to that of the next.
        outside: Slices under all their windows that the input lacks, in front of its first one and
            behind its last one.
        merged_group_channels: Channels of a group, where tiles take several groups at once, or 0;
            then `groups` is 1, and a group has as many outputs.
    """

    batch: int
    height: int
    width: int
    channels: int
    outputs: int
    groups: int = 1
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    begin: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (0, 0)
    out_height: int = 1
    out_width: int = 1
    slices: int = 1
    covered: tuple[int, int] = (0, 1)
    slice_step: int = 0
    results: int = 1
    result_stride: int = 1
    outside: tuple[int, int] = (0, 0)
    merged_group_channels: int = 0

    @classmethod
    def matrix(cls, rows: int, depth: int, columns: int) -> Images:
        """A product of (rows, depth) by (depth, columns)."""
        return cls(1, 1, rows, depth, columns, out_width=rows)

    @property
    def pixels(self) -> int:
        """Rows of the result."""
        return self.batch * self.out_height * self.out_width

    @property
    def symbolic(self) -> bool:
        """Whether sizes are symbolic."""
        return Size in map(type, (self.batch, self.height, self.width))

    @property
    def depth(self) -> int:
        """Products that one element of the result adds up."""
        channels = self.merged_group_channels or self.channels // self.groups
        return self.sources * self.kernel[0] * self.kernel[1] * channels

    @property
    def sources(self) -> int:
        """Slices that one element of the result is made of."""
        return self.covered[1] - self.covered[0]

    @property
    def panel_slices(self) -> int:
        """Slices that have room where they are laid out."""
        return self.sources + (self.results - 1) * self.result_stride

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.results * self.pixels * self.outputs * self.depth

    @property
    def is_pointwise(self) -> bool:
        """Whether output pixels are input pixels, in order."""
        return (
            self.kernel == (1, 1)
            and self.slices == 1
            and self.stride == (1, 1)
            and not any(self.begin + self.end)
            and (self.out_height, self.out_width) == (self.height, self.width)
        )

    @property
    def is_line(self) -> bool:
        """Whether every image is one line of pixels: sound, or a sequence."""
        alone = self.kernel[0] == self.slices == 1 and not self.merged_group_channels
        single = alone and self.height == 1 and self.out_height == 1
        return single and not (self.begin[0] or self.end[0])

    @property
    def is_column(self) -> bool:
        """Whether every image is one pixel wide, and so are windows."""
        single = self.kernel[1] == 1 and self.width == 1 and self.out_width == 1
        return single and not (self.begin[1] or self.end[1])

    @property
    def as_column(self) -> Images:
        """The same convolution of a line, whose pixels are lines then."""
        return replace(
            self,
            height=self.width,
            width=1,
            kernel=self.kernel[::-1],
            stride=self.stride[::-1],
            dilation=self.dilation[::-1],
            begin=self.begin[::-1],
            end=self.end[::-1],
            out_height=self.out_width,
            out_width=1,
        )


@dataclass(frozen=True)
class Storage:
    """How the input and output of a problem lie in memory.

    Attributes:
        half_in: Whether the input has 16 bits: bfloat16 for arithmetic in bfloat16, float16 for
            arithmetic in float16.
        half_out: Whether output and residual are; likewise.
        x_pitch: Elements from one input pixel to the next, or 0 for as many as channels.
        x_first: Channel of these that is the problem's first.
        y_pitch: Elements from one output pixel to the next, or 0 for as many as outputs.
        y_first: Channel of these that the first output is written to.
        scaled: Whether the input is multiplied and shifted on its way.
        planar: Elements from one channel of a picture to the next if they lie apart, or 0; only for
            `Source.HALO`.
        computed: Whether the input is computed piece by piece, where tiles read it.
        w_part: Which part of each column's terms of the packed weights are the problem's.
        w_parts: How many equal parts they have; 1 but for matrices.
    """

    half_in: bool = False
    half_out: bool = False
    x_pitch: int = 0
    x_first: int = 0
    y_pitch: int = 0
    y_first: int = 0
    scaled: bool = False
    planar: int = 0
    computed: bool = False
    w_part: int = 0
    w_parts: int = 1

    def holds_only(self, images: Images) -> bool:
        """Whether memory holds the problem's input and output alone, from the first element on."""
        whole = self.x_pitch in (0, images.channels) and self.y_pitch in (0, images.outputs)
        return whole and not (self.x_first or self.y_first)


PLAIN = Storage()
"""Float32 images that fill their memory."""
