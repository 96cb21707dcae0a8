"""Operators on 8-bit integers: quantization, products, convolutions.

Elements of a quantized tensor are called levels: ``real = (level - zero_point) * scale``. A product
of uint8 rows and int8 weights is a sum of int32; with zero points `za` and `zb` of both sides it is

    sum((a - za) * (b - zb)) = sum(a * b) - zb * sum(a) - za * sum(b) + terms * za * zb

so kernels add up ``a * b``, and the epilogue corrects by the sums of rows and columns. Four
neighbouring terms (a quad) are multiplied and added up by one instruction; a panel is 64 columns of
packed weights, quad by quad. `product` packs and records products, `byte_tiles` computes them;
convolutions read windows (`convolution_windows`), or lines of the image (`convolution_lines`).
"""
