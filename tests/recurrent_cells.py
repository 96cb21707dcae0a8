"""What tests of recurrent operators go through, whatever device computes them."""

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

ACTIVATIONS = [
    (
        ["HardSigmoid", "Relu", "Softsign"],
        {"activation_alpha": [0.3], "activation_beta": [0.4]},
    ),
    (
        ["Affine", "LeakyRelu", "ScaledTanh"],
        {"activation_alpha": [0.5, 0.1, 1.5], "activation_beta": [0.2, 0.7]},
    ),
    (["Sigmoid", "ThresholdedRelu", "Elu"], {"activation_alpha": [0.3, 1.0]}),
    (["Sigmoid", "Softplus", "Tanh"], {}),
]
"""Of an LSTM's gates, cell and output; their parameters as ONNX's attributes have them."""
