"""Quantisation: 4-bit weights and activations on grids that every group chooses for itself."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "po2.families": (
            "FOUR_OVER_SIX",
            "IF4",
            "LLOYD1",
            "MIXFP4",
            "MPO2",
            "MPO2_ROBUST",
            "MXFP4",
            "NF4",
            "NVFP4",
            "PO2_NF4",
            "PO2_NF4_RESIDUAL",
            "PO2_SPLIT87",
            "SFP4",
            "SFP4_PAIR",
            "GridFamily",
            "family",
            "register_family",
            "sfp4_family",
        ),
        "po2.tensor": ("QuantizedTensor", "dequantize", "fake_quantize", "quantize"),
        "po2.fitting": ("GridFit", "HeavyTailWarning", "fit_grid_pair", "fit_grids"),
        "po2.theory": ("breakeven_gain", "clark_min", "expected_gain", "gain_law"),
        "po2.layers": ("QuantizedConv", "QuantizedLinear"),
        "po2.torch_nn": ("quantize_model",),
        "po2.activations": ("fit_activation_grids", "quantize_activations"),
        "po2.storage": ("load_quantized", "save_quantized"),
        "po2.sfp4": ("sfp4_matmul",),
        "po2.error_report": ("QuantizationReport", "quantization_report"),
        "po2.convert": ("Conversion", "convert"),
        "po2.torchao": ("PO2WeightOnlyConfig",),
        "po2.huggingface": ("PO2Config",),
    },
    extra="quant",
    apart=("po2.torchao",),
)
