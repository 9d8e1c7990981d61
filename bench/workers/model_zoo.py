"""Small models of many architectures, with random weights and a batch for each: transformers, timm and torchvision.

A model of transformers is its package's own class with a configuration whose sizes are small; attributes that
configurations have in common are set by name (``SMALL``). Nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

WORDS, TOKENS, BATCH, PIXELS, LABELS = 64, 8, 2, 32, 4
MOST_PARAMETERS = 4_000_000

_WIDTH = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim", "word_embed_proj_dim")
_INNER = ("intermediate_size", "d_ff", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_LAYERS += ("num_encoder_layers", "num_decoder_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
SMALL: dict[str, Any] = {
    **dict.fromkeys(_WIDTH, 32),
    **dict.fromkeys(_INNER, 48),
    **dict.fromkeys(_LAYERS, 2),
    **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(_EXPERTS, 4),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "attention_head_size": 8,
    "d_kv": 8,
    "vocab_size": WORDS,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "expert_ffn_hidden_size": 16,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    "sliding_window": 64,
    "state_size": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
    "ssm_state_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "time_step_rank": 8,
    "lru_width": 32,
    "image_size": PIXELS,
    "num_labels": LABELS,
    "hidden_sizes": [16, 24],
    "depths": [1, 1],
    "layer_types": None,
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "feat_extract_norm": "group",
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "output_hidden_size": 32,
    "attention_window": 8,
    "block_size": 8,
    "num_random_blocks": 1,
    "output_router_logits": False,
    "router_jitter_noise": 0.0,
    "use_cache": False,
}
"""Values of attributes that configurations have in common; those that a configuration does not have are left out."""

SPECIAL: dict[str, dict[str, Any]] = {
    "resnet": {"hidden_sizes": [16, 32], "embedding_size": 16, "layer_type": "basic", "stage_names": None},
    "vit": {"patch_size": 8},
    "deit": {"patch_size": 8},
    "beit": {"patch_size": 8},
    "dinov2": {"patch_size": 8},
    "dinov2_with_registers": {"patch_size": 8},
    "ijepa": {"patch_size": 8},
    "vit_msn": {"patch_size": 8},
    "swin": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "swinv2": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "donut-swin": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "convnext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    "segformer": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
    "albert": {"embedding_size": 16},
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "electra": {"embedding_size": 16},
    "mamba2": {"head_dim": 16, "n_groups": 2},
    "mobilebert": {"embedding_size": 16, "true_hidden_size": 32, "intra_bottleneck_size": 32},
}
"""What a configuration needs besides, by the type of model."""

SEEDS = {"olmoe": 2}
"""Seeds of batches, by the type of model: of the usual batch two experts are so close that rounding chooses."""

MIXED = {"layer_types", "layers_block_type", "first_k_dense_replace", "sliding_window_pattern", "attention_types"}
"""Attributes of those whose layers are of several kinds: they have two layers, others one."""
DETECTED = (
    "dropout",
    "dropout_rate",
    "drop_rate",
    "pdrop",
    "dropout_prob",
    "drop_prob",
    "layerdrop",
    "drop_path_rate",
    "jitter",
)

CAUSAL = [
    "afmoe",
    "apertus",
    "arcee",
    "bamba",
    "bert",
    "biogpt",
    "bitnet",
    "bloom",
    "codegen",
    "cohere",
    "cohere2",
    "ctrl",
    "cwm",
    "dbrx",
    "deepseek_v2",
    "deepseek_v3",
    "diffllama",
    "doge",
    "dots1",
    "electra",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "falcon",
    "falcon_h1",
    "falcon_mamba",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "jamba",
    "jetmoe",
    "lfm2",
    "llama",
    "llama4_text",
    "mamba",
    "mamba2",
    "minimax",
    "minimax_m2",
    "ministral",
    "mistral",
    "mixtral",
    "mpt",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "openai-gpt",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "seed_oss",
    "smollm3",
    "solar_open",
    "stablelm",
    "starcoder2",
    "vaultgemma",
    "xglm",
    "xlnet",
    "zamba2",
]
MASKED = [
    "albert",
    "bert",
    "camembert",
    "convbert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "eurobert",
    "fnet",
    "ibert",
    "layoutlm",
    "longformer",
    "megatron-bert",
    "mobilebert",
    "modernbert",
    "mpnet",
    "mra",
    "nystromformer",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roformer",
    "squeezebert",
    "xlm",
    "xlm-roberta",
    "xmod",
    "yoso",
]
IMAGES = [
    "beit",
    "convnext",
    "convnextv2",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "donut-swin",
    "ijepa",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilevit",
    "poolformer",
    "regnet",
    "resnet",
    "segformer",
    "swiftformer",
    "swin",
    "swinv2",
    "vit",
    "vit_msn",
]
SEQ2SEQ = [
    "bart",
    "blenderbot",
    "led",
    "longt5",
    "m2m_100",
    "marian",
    "mbart",
    "mt5",
    "nllb-moe",
    "pegasus",
    "plbart",
    "switch_transformers",
    "t5",
    "umt5",
]
SPEECH = ["hubert", "sew", "unispeech", "unispeech-sat", "wav2vec2", "wavlm"]

TIMM = [
    "test_byobnet",
    "test_convnext",
    "test_convnext2",
    "test_convnext3",
    "test_efficientnet",
    "test_efficientnet_evos",
    "test_efficientnet_gn",
    "test_efficientnet_ln",
    "test_mambaout",
    "test_nfnet",
    "test_resnet",
    "test_vit",
    "test_vit2",
    "test_vit3",
    "test_vit4",
]

Built = tuple[nn.Module, dict[str, Any]]


@dataclass(frozen=True)
class Architecture:
    """A name such as "transformers/llama", and how to make the model and its batch."""

    name: str
    build: Callable[[], Built] = field(repr=False)
    modules: tuple[str, ...] = ()


# ---- transformers


def _kinds() -> Iterable[tuple[str, str, list[str]]]:
    yield "", "CAUSAL_LM", CAUSAL
    yield "masked ", "MASKED_LM", MASKED
    yield "", "IMAGE_CLASSIFICATION", IMAGES
    yield "", "SEQ_TO_SEQ_CAUSAL_LM", SEQ2SEQ
    yield "", "CTC", SPEECH


def _small(config_class: Any, model_type: str) -> Any:
    """A configuration of small sizes."""
    known = config_class()
    there = {**known.to_dict(), **dict.fromkeys(getattr(config_class, "attribute_map", {}))}
    values = {
        key: value for key, value in SMALL.items() if key in there and not isinstance(getattr(known, key, 0), dict)
    }
    values |= {key: 0.0 for key, value in there.items() if isinstance(value, float) and key.endswith(DETECTED)}
    mapped = getattr(config_class, "attribute_map", {})
    # An attribute and its other name must not be set apart.
    values = {key: value for key, value in values.items() if mapped.get(key) not in values}
    lists = {key for key, value in values.items() if isinstance(getattr(known, key, None), list | tuple)}
    if not MIXED & there.keys():
        values |= {key: 1 for key in _LAYERS if key in values}
    values = {key: value for key, value in values.items() if key in lists or not isinstance(value, list)}
    values = {key: value for key, value in values.items() if key != "layer_types" or "layers_block_type" not in there}
    values = {
        key: [value] * 2
        if key in lists and isinstance(value, int) and not key.startswith("attention_window")
        else value
        for key, value in values.items()
    }
    for key in ("hidden_sizes", "depths"):
        old = getattr(known, key, None)
        if key in values and isinstance(old, list | tuple):
            values[key] = [16 if key == "hidden_sizes" else 1] * len(old)
    return config_class(**{**values, **SPECIAL.get(model_type, {})})


def _of_transformers(model_type: str, class_name: str, task: str) -> Built:
    import transformers

    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    config = _small(auto.CONFIG_MAPPING[model_type], model_type)
    if hasattr(config, "num_labels"):
        config.num_labels = LABELS
    if task == "SEQ_TO_SEQ_CAUSAL_LM":
        config.decoder_start_token_id = 0
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    try:
        model = getattr(transformers, class_name)(config)
    except (ValueError, ImportError):
        config._attn_implementation = "eager"
        model = getattr(transformers, class_name)(config)
    return model, _batch(task, config)


def _batch(task: str, config: Any) -> dict[str, Any]:
    torch.manual_seed(SEEDS.get(config.model_type, 1))
    if task == "IMAGE_CLASSIFICATION":
        return {"pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS), "labels": torch.arange(BATCH) % LABELS}
    if task == "CTC":
        return {"input_values": torch.randn(BATCH, 400), "labels": torch.randint(3, 20, (BATCH, 3))}
    tokens = 16 if "longformer" in config.model_type or config.model_type == "led" else TOKENS
    ids = torch.randint(3, WORDS, (BATCH, tokens))
    batch = {"input_ids": ids, "labels": ids.clone()}
    if task == "SEQ_TO_SEQ_CAUSAL_LM":
        batch["labels"] = ids[:, : TOKENS // 2].clone()
    else:
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        batch["attention_mask"] = mask
        batch["labels"][0, -2:] = -100
    return batch


def _architectures_of_transformers() -> Iterable[Architecture]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    for prefix, task, types in _kinds():
        names = getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
        for model_type in types:
            if model_type not in names:
                continue
            name = names[model_type] if isinstance(names[model_type], str) else names[model_type][0]

            def build(model_type: str = model_type, name: str = name, task: str = task) -> Built:
                return _of_transformers(model_type, name, task)

            yield Architecture(f"transformers/{prefix}{model_type}".replace(" ", "-"), build)


# ---- timm and torchvision


class Classifier(nn.Module):
    """Gives a classifier of images a loss, as models of transformers have it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def _images(model: nn.Module, pixels: int) -> Built:
    torch.manual_seed(1)
    batch = {"pixel_values": torch.randn(4, 3, pixels, pixels), "labels": torch.arange(4) % LABELS}
    return Classifier(model), batch


def _of_timm(name: str) -> Built:
    import timm

    torch.manual_seed(0)
    sized = {"img_size": 64} if "vit" in name else {}
    return _images(timm.create_model(name, num_classes=LABELS, **sized), 64)


def _of_torchvision() -> dict[str, Callable[[], nn.Module]]:
    models = importlib.import_module("torchvision.models")
    one = {"num_classes": LABELS}
    convnext = importlib.import_module("torchvision.models.convnext")
    regnet = importlib.import_module("torchvision.models.regnet")
    resnet = importlib.import_module("torchvision.models.resnet")
    parameters = regnet.BlockParams.from_init_params(depth=3, w_0=16, w_a=8.0, w_m=2.0, group_width=8)
    return {
        "alexnet": lambda: models.alexnet(**one),
        "convnext": lambda: models.ConvNeXt(
            [convnext.CNBlockConfig(16, 32, 1), convnext.CNBlockConfig(32, None, 1)], **one
        ),
        "densenet": lambda: models.DenseNet(8, (2, 2), 16, **one),
        "efficientnet_b0": lambda: models.efficientnet_b0(**one),
        "googlenet": lambda: models.googlenet(aux_logits=False, init_weights=False, **one),
        "mnasnet0_5": lambda: models.mnasnet0_5(**one),
        "mobilenet_v2": lambda: models.mobilenet_v2(width_mult=0.25, **one),
        "mobilenet_v3_small": lambda: models.mobilenet_v3_small(**one),
        "regnet": lambda: models.RegNet(parameters, stem_width=8, **one),
        "resnet_basic": lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], width_per_group=64, **one),
        "resnext": lambda: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], groups=4, width_per_group=4, **one),
        "shufflenet_v2_x0_5": lambda: models.shufflenet_v2_x0_5(**one),
        "squeezenet1_1": lambda: models.squeezenet1_1(**one),
        "swin": lambda: models.SwinTransformer([4, 4], 24, [1, 1], [2, 4], [4, 4], stochastic_depth_prob=0.0, **one),
        "vit": lambda: models.VisionTransformer(64, 16, 2, 4, 32, 64, **one),
    }


def _architectures_of_images() -> Iterable[Architecture]:
    import timm

    for name in TIMM:
        if timm.is_model(name):
            yield Architecture(f"timm/{name}", lambda name=name: _of_timm(name))
    for name, make in _of_torchvision().items():

        def build(make: Callable[[], nn.Module] = make) -> Built:
            torch.manual_seed(0)
            return _images(make(), 64)

        yield Architecture(f"torchvision/{name}", build)


def architectures() -> dict[str, Architecture]:
    """All of them by name."""
    found = [*_architectures_of_transformers(), *_architectures_of_images()]
    return {each.name: each for each in found}


def built(architecture: Architecture) -> Built:
    """The model, in training mode and without dropout, and its batch.

    Raises:
        ValueError: It has more parameters than MOST_PARAMETERS.
    """
    model, batch = architecture.build()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():
                weight.normal_(std=0.1)  # of a router that is all zeros, all experts are the best ones
    parameters = sum(p.numel() for p in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters")
    return model.train(), batch
