"""The functions of OpenVINO's operation sets that a graph can be written with, as a table.

Facts from https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets.html. A
line is the first operation set that has a function, its name, the layer that it makes, and its
arguments in order:

| written | is |
| --- | --- |
| ``data`` | an input |
| ``data?`` | an input that may be left out |
| ``*nodes`` | a list of inputs |
| ``@axis`` | an attribute that must be given |
| ``@axis=0`` | one with a default; ``@axis=`` may be left out |
| ``@kernel_shape:kernel`` | one that files call ``kernel`` |
| ``->2`` | how many outputs there are, if not one: a number, or the argument that tells |
"""

from __future__ import annotations

OPERATIONS = """
1 batch_norm_inference BatchNormInference data gamma beta mean variance @epsilon
1 avg_pool AvgPool data_batch @strides @pads_begin @pads_end @kernel_shape:kernel \
@exclude_pad:exclude-pad @rounding_type=floor @auto_pad=explicit
1 broadcast Broadcast data target_shape axes_mapping? @mode=numpy
3 broadcast Broadcast data target_shape axes_mapping? @broadcast_spec:mode=numpy
2 batch_to_space BatchToSpace data block_shape crops_begin crops_end
3 bucketize Bucketize data buckets @output_type=i64 @with_right_bound=true
1 clamp Clamp data @min_value:min @max_value:max
15 col2im Col2Im data output_size kernel_size @strides=1,1 @dilations=1,1 @pads_begin=0,0 \
@pads_end=0,0
1 concat Concat *nodes @axis
1 convert Convert data @destination_type
1 convert_like ConvertLike data like
1 convolution Convolution data filters @strides @pads_begin @pads_end @dilations @auto_pad=explicit
1 convolution_backprop_data ConvolutionBackpropData data filters @strides output_shape? \
@pads_begin= @pads_end= @dilations= @auto_pad=explicit @output_padding=
1 ctc_greedy_decoder CTCGreedyDecoder data sequence_mask @merge_repeated:ctc_merge_repeated=true
6 ctc_greedy_decoder_seq_len CTCGreedyDecoderSeqLen data sequence_length blank_index? \
@merge_repeated=true @classes_index_type=i32 @sequence_length_type=i32 ->2
3 cum_sum CumSum arg axis @exclusive=false @reverse=false
3 cumsum CumSum arg axis @exclusive=false @reverse=false
8 deformable_convolution DeformableConvolution data offsets filters @strides @pads_begin @pads_end \
@dilations mask? @auto_pad=explicit @group=1 @deformable_group=1 \
@bilinear_interpolation_pad:bilinear_interpolation_pad=false
1 depth_to_space DepthToSpace node @mode @block_size=1
7 dft DFT data axes signal_size?
7 einsum Einsum *inputs @equation
1 elu Elu data @alpha
15 embedding_bag_offsets EmbeddingBagOffsets emb_table indices offsets default_index? \
per_sample_weights? @reduction=sum
3 embedding_bag_offsets_sum EmbeddingBagOffsetsSum emb_table indices offsets default_index? \
per_sample_weights?
15 embedding_bag_packed EmbeddingBagPacked emb_table indices per_sample_weights? @reduction=sum
3 embedding_bag_packed_sum EmbeddingBagPackedSum emb_table indices per_sample_weights?
3 embedding_segments_sum EmbeddingSegmentsSum emb_table indices segment_ids num_segments \
default_index? per_sample_weights?
3 extract_image_patches ExtractImagePatches image @sizes @strides @rates @auto_pad
9 eye Eye num_rows num_columns diagonal_index @output_type batch_shape?
1 fake_quantize FakeQuantize data input_low input_high output_low output_high @levels \
@auto_broadcast=numpy
1 gather Gather data indices axis
7 gather Gather data indices axis @batch_dims=0
6 gather_elements GatherElements data indices @axis=0
5 gather_nd GatherND data indices @batch_dims=0
2 gelu Gelu node
7 gelu Gelu data @approximation_mode
1 grn GRN data @bias
1 group_convolution GroupConvolution data filters @strides @pads_begin @pads_end @dilations \
@auto_pad=explicit
1 group_convolution_backprop_data GroupConvolutionBackpropData data filters @strides output_shape? \
@pads_begin= @pads_end= @dilations= @auto_pad=explicit @output_padding=
12 group_normalization GroupNormalization data scale bias @num_groups @epsilon
3 gru_cell GRUCell X initial_hidden_state W R B @hidden_size @activations= @activations_alpha= \
@activations_beta= @clip=0.0 @linear_before_reset=false
5 gru_sequence GRUSequence X initial_hidden_state sequence_lengths W R B @hidden_size @direction \
@activations= @activations_alpha= @activations_beta= @clip=0.0 @linear_before_reset=false ->2
1 hard_sigmoid HardSigmoid data alpha beta
5 hsigmoid HSigmoid data
7 idft IDFT data axes signal_size?
4 interpolate Interpolate image output_shape scales @mode @shape_calculation_mode @pads_begin= \
@pads_end= @coordinate_transformation_mode=half_pixel @nearest_mode=round_prefer_floor \
@antialias=false @cube_coeff=-0.75 axes?
11 interpolate Interpolate image scales_or_sizes @mode @shape_calculation_mode @pads_begin= \
@pads_end= @coordinate_transformation_mode=half_pixel @nearest_mode=round_prefer_floor \
@antialias=false @cube_coeff=-0.75 axes?
9 irdft IRDFT data axes signal_size?
10 is_finite IsFinite data
10 is_nan IsNaN data
5 log_softmax LogSoftmax data @axis
1 lrn LRN data axes @alpha=1 @beta=0.5 @bias=1 @size=5
1 lstm_cell LSTMCell X initial_hidden_state initial_cell_state W R B @hidden_size @activations= \
@activations_alpha= @activations_beta= @clip=0.0 ->2
5 lstm_sequence LSTMSequence X initial_hidden_state initial_cell_state sequence_lengths W R B \
@hidden_size @direction @activations= @activations_alpha= @activations_beta= @clip=0.0 ->3
1 matmul MatMul data_a data_b @transpose_a @transpose_b
1 max_pool MaxPool data @strides @pads_begin @pads_end @kernel_shape:kernel @rounding_type=floor \
@auto_pad=explicit
8 max_pool MaxPool data @strides @dilations @pads_begin @pads_end @kernel_shape:kernel \
@rounding_type=floor @auto_pad=explicit @index_element_type=i64 @axis=0 ->2
8 adaptive_avg_pool AdaptiveAvgPool data output_shape
8 adaptive_max_pool AdaptiveMaxPool data output_shape @index_element_type=i64 ->2
1 deformable_convolution DeformableConvolution data deformable_values filters @strides @pads_begin \
@pads_end @dilations @auto_pad=explicit @group=1 @deformable_group=1
2 mvn MVN data @across_channels=false @normalize_variance=false @eps=1e-9
6 mvn MVN data axes @normalize_variance @eps @eps_mode
5 non_max_suppression NonMaxSuppression boxes scores max_output_boxes_per_class? iou_threshold? \
score_threshold? soft_nms_sigma? @box_encoding=corner @sort_result_descending=true \
@output_type=i64 ->3
3 non_zero NonZero data @output_type=i64
1 normalize_l2 NormalizeL2 data axes @eps @eps_mode
1 one_hot OneHot indices depth on_value off_value @axis
16 one_hot OneHot indices depth on_value off_value @axis @negative_indices_mode=
1 pad Pad arg pads_begin pads_end @pad_mode arg_pad_value?
1 prelu PReLU data slope
1 range Range start stop step
12 range Range start stop step @output_type
9 rdft RDFT data axes signal_size?
1 reshape Reshape node output_shape @special_zero
1 reverse_sequence ReverseSequence input seq_lengths @batch_axis @seq_axis
3 rnn_cell RNNCell X initial_hidden_state W R B @hidden_size @activations @activations_alpha \
@activations_beta @clip=0.0
5 rnn_sequence RNNSequence X initial_hidden_state sequence_lengths W R B @hidden_size @direction \
@activations= @activations_alpha= @activations_beta= @clip=0.0 ->2
3 roi_align ROIAlign data rois batch_indices @pooled_h @pooled_w @sampling_ratio @spatial_scale \
@mode
9 roi_align ROIAlign data rois batch_indices @pooled_h @pooled_w @sampling_ratio @spatial_scale \
@mode @aligned_mode=asymmetric
2 reorg_yolo ReorgYolo input @stride
7 roll Roll data shift axes
5 round Round data @mode=half_to_even
13 scaled_dot_product_attention ScaledDotProductAttention query key value attention_mask? scale? \
@causal=false
3 scatter_elements_update ScatterElementsUpdate data indices updates axis
12 scatter_elements_update ScatterElementsUpdate data indices updates axis @reduction=none \
@use_init_val=true
3 scatter_nd_update ScatterNDUpdate data indices updates
15 scatter_nd_update ScatterNDUpdate data indices updates @reduction=none
3 scatter_update ScatterUpdate data indices updates axis
15 search_sorted SearchSorted sorted_sequence values @right_mode=false
1 select Select cond then_node else_node @auto_broadcast=numpy
1 selu Selu data alpha lambda_value
1 shape_of ShapeOf data
3 shape_of ShapeOf data @output_type=i64
3 shuffle_channels ShuffleChannels data @axis @group
8 slice Slice data start stop step axes?
16 segment_max SegmentMax data segment_ids num_segments? @fill_mode
15 slice_scatter SliceScatter data updates start stop step axes?
1 softmax SoftMax data @axis
2 space_to_batch SpaceToBatch data block_shape pads_begin pads_end
1 space_to_depth SpaceToDepth node @mode @block_size=1
1 split Split data axis @num_splits ->num_splits
1 squeeze Squeeze data axes
15 squeeze Squeeze data axes? @allow_axis_skip=false
15 stft STFT data window frame_size frame_step @transpose_frames
1 strided_slice StridedSlice data begin end strides @begin_mask @end_mask @new_axis_mask= \
@shrink_axis_mask= @ellipsis_mask=
4 swish Swish data beta?
1 tile Tile data repeats
1 topk TopK data k @axis @mode @sort ->2
3 topk TopK data k @axis @mode @sort @index_element_type=i32 ->2
11 topk TopK data k @axis @mode @sort @index_element_type=i32 @stable=false ->2
1 transpose Transpose data input_order
10 unique Unique data axis? @sorted=true @index_element_type=i64 @count_element_type=i64 ->4
1 unsqueeze Unsqueeze data axes
1 variadic_split VariadicSplit data axis split_lengths ->split_lengths
"""

ONE_INPUT = {
    1: "abs:Abs absolute:Abs acos:Acos asin:Asin atan:Atan ceil:Ceiling ceiling:Ceiling cos:Cos "
    "cosh:Cosh erf:Erf exp:Exp floor:Floor log:Log logical_not:LogicalNot negative:Negative "
    "relu:ReLU sigmoid:Sigmoid sign:Sign sin:Sin sinh:Sinh sqrt:Sqrt tan:Tan tanh:Tanh",
    4: "acosh:Acosh asinh:Asinh atanh:Atanh hswish:HSwish mish:Mish softplus:SoftPlus",
    9: "softsign:SoftSign",
    13: "bitwise_not:BitwiseNot",
    16: "identity:Identity",
}
"""Functions of one input: the operation set that has them first, to their layers."""

TWO_INPUTS = {
    1: "add:Add divide:Divide equal:Equal floor_mod:FloorMod greater:Greater "
    "greater_equal:GreaterEqual less:Less less_equal:LessEqual logical_and:LogicalAnd "
    "logical_or:LogicalOr logical_xor:LogicalXor maximum:Maximum minimum:Minimum mod:Mod "
    "multiply:Multiply not_equal:NotEqual power:Power squared_difference:SquaredDifference "
    "subtract:Subtract",
    13: "bitwise_and:BitwiseAnd bitwise_or:BitwiseOr bitwise_xor:BitwiseXor",
}
"""Functions of two inputs, which are broadcast to one shape."""

REDUCTIONS = {
    1: "reduce_logical_and:ReduceLogicalAnd reduce_logical_or:ReduceLogicalOr reduce_max:ReduceMax "
    "reduce_mean:ReduceMean reduce_min:ReduceMin reduce_prod:ReduceProd reduce_sum:ReduceSum",
    4: "reduce_l1:ReduceL1 reduce_l2:ReduceL2",
}
"""Reductions along axes."""
