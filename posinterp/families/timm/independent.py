"""timm's architectures whose weights do not depend on the input size, and those that work at one size only.

For the first a resize writes a correct copy, with the new size in the config. They are known by name, or by tensors
that no other architecture of timm has.
"""

from __future__ import annotations

from ...rules import Family, Patch

SMALL = {"num_classes": 5}


def _convolutional(name: str, archs: str, has: str, example: str, unit: int = 1, leave: str = "") -> Family:
    """A network whose constructor takes no image size. `unit`: what sides must be multiples of."""
    return Family(
        name,
        has=tuple(has.split()),
        archs=tuple(archs.split()),
        patch=Patch(kernel=None),
        unit=unit,
        leave=tuple(leave.split()),
        takes_img_size=False,
        home_does="nothing to do",
        example={"name": example, **SMALL},
    )


def _sized(
    name: str,
    archs: str,
    has: str,
    example: dict[str, object],
    patch: Patch,
    note: str = "",
    leave: str = "",
    unnamed: tuple[str, ...] | None = (),
) -> Family:
    """A network whose constructor takes an image size, and whose weights do not follow it."""
    return Family(
        name,
        has=tuple(has.split()),
        archs=tuple(archs.split()),
        patch=patch,
        leave=tuple(leave.split()),
        unnamed=unnamed,
        home_does="nothing to do" + (f": {note}" if note else ""),
        example=example,
    )


def _mixer(name: str, archs: str, has: str, example: str) -> Family:
    return Family(
        name,
        has=tuple(has.split()),
        archs=tuple(archs.split()),
        patch=Patch(kernel=None),
        unit=1,
        refuses="its token-mixing weights are not positions: they are learned for one number of patches, and no method "
        "is established that takes them to another",
        home_does="cannot: a strict load of another size raises",
        note="refused: a mixer is for the size it was trained at",
        example={"name": example, **SMALL},
    )


FAMILIES: tuple[Family, ...] = (
    _mixer("mlp-mixer", "mixer_* gmixer_* resmlp_* gmlp_*",
           "blocks.0.{mlp_tokens.fc1.weight,linear_tokens.weight,mlp_channels.gate.proj.weight}", "gmixer_12_224"),
    Family(
        "efficientformer-v1",
        has=("stages.3.blocks.*.token_mixer.attention_bias_idxs",),
        archs=("efficientformer_l*",),
        leave=("stages.3.blocks.*.token_mixer.{attention_bias_idxs,attention_biases}",),
        patch=Patch(kernel=None, stem=32),
        refuses="its attention is fixed at 7×7 places, and its forward pass fails at any other size than 224",
        home_does="cannot: it takes img_size and ignores it",
        note="refused: use efficientformerv2, or train it at 224",
        example={"name": "efficientformer_l1", **SMALL},
    ),
    # ---- with an image size
    _sized("naflexvit", "naflexvit_*", "embeds.proj.weight blocks.0.**",
           {"name": "naflexvit_base_patch16_gap", "depth": 1, **SMALL}, Patch(kernel=None, stem=16),
           "its fixed table is resized in forward", "embeds.pos_embed**"),
    _sized("qwen3-vit", "qwen3_vit_*", "encoder.pos_embed encoder.patch_embed.proj.weight",
           {"name": "qwen3_vit_88m_merge"},
           Patch(kernel=None, stem=32), "its fixed table is resized in forward", "encoder.pos_embed",
           unnamed=("encoder.merger.fc1.weight",)),
    _sized("qwen3-vit-encoder", "qwen3_vit_*", "pos_embed patch_embed.proj.weight", {"name": "qwen3_vit_88m_enc"},
           Patch(kernel=None, stem=32), "its fixed table is resized in forward", "pos_embed",
           unnamed=("merger.fc1.weight",)),
    _sized("gemma4-vit", "gemma4_vit_*", "**patch_embed.position_embedding_table",
           {"name": "gemma4_vit_167m"}, Patch(kernel=None, stem=16),
           "its table has a row for each coordinate", "**patch_embed.position_embedding_table"),
    _sized("deepseek-vit", "deepseek_vit_*", "{,encoder.}patch_embed.proj.weight {,encoder.}blocks.0.attn.qkv.weight",
           {"name": "deepseek_vit_412m"}, Patch(kernel=None, stem=42), "rotary positions are computed", unnamed=None),
    _sized("coat", "coat_*", "cls_token1", {"name": "coat_tiny", **SMALL}, Patch(kernel=None, stem=32),
           "positions come from convolutions"),
    _sized("xcit", "xcit_*", "cls_attn_blocks.0.norm1.weight patch_embed.proj.0.0.weight",
           {"name": "xcit_nano_12_p16_224", "depth": 1, **SMALL},
           Patch(kernel=None, stem=2, stages="patch_embed.proj.{0,2,4,6}"),
           "positions are a projection of Fourier features", "pos_embed.token_projection.weight"),
    _sized("twins", "twins_*", "blocks.0.0.norm1.weight pos_block.0.proj.0.weight",
           {"name": "twins_svt_small", "depths": (1, 1, 1, 1), **SMALL}, Patch(kernel=None, stem=32),
           "positions come from convolutions with zero padding (PEG)"),
    _sized("mobilevit", "mobilevit*", "stages.4.1.norm.weight", {"name": "mobilevit_xxs", **SMALL}, Patch(kernel=None)),
    _sized("repvit", "repvit_*", "stages.2.blocks.2.se.fc1.weight", {"name": "repvit_m0_9", **SMALL},
           Patch(kernel=None)),
    _sized("sequencer", "sequencer2d_*", "stages.1.downsample.down.weight", {"name": "sequencer2d_s", **SMALL},
           Patch(kernel=None)),
    _sized("swiftformer", "swiftformer_*", "stem.4.weight stages.0.blocks.0.**", {"name": "swiftformer_xs", **SMALL},
           Patch(kernel=None)),
    # ---- without
    _convolutional("edgenext", "edgenext_*", "stages.1.blocks.{1,2}.pos_embd.token_projection.weight",
                   "edgenext_xx_small", leave="**.pos_embd.token_projection.weight"),
    _convolutional("convnext", "convnext* test_convnext*", "stem.0.weight stages.0.blocks.0.conv_dw.weight",
                   "test_convnext"),
    _convolutional("convmixer", "convmixer_*", "blocks.0.1.weight blocks.0.0.fn.0.weight", "convmixer_768_32"),
    _convolutional("cpubone", "cpubone_*", "head.classifier.linear.weight", "cpubone_b0_bfrobust"),
    _convolutional("csatv2", "csatv2*", "stages.1.0.weight", "csatv2", unit=8, leave="**.pos_embed.proj.weight"),
    _convolutional("cspnet", "cs3* cspdarknet* cspresne* darknet* sedarknet*",
                   "stages.1.blocks.0.conv1.bn.weight stem.conv1.conv.weight", "cs3darknet_s"),
    _convolutional("cspnext", "cspnext_*", "stages.3.1.conv1.bn.weight", "cspnext_m"),
    _convolutional("davit", "davit_*", "stages.0.blocks.0.{0.,spatial_block.}cpe1.proj.weight", "davit_tiny"),
    _convolutional("densenet", "densenet* densenetblur* tv_densenet*", "features.conv0.weight", "densenet121"),
    _convolutional("dla", "dla*", "level0.0.weight", "dla46_c"),
    _convolutional("dpn", "dpn*", "features.conv1_1.bn.weight", "dpn48b"),
    _convolutional("repghost", "repghostnet_*", "blocks.0.0.ghost1.fusion_bn.0.weight", "repghostnet_050"),
    _convolutional("efficientnet",
                   "*efficientnet* fbnet* gc_efficientnet* ghostnet* hardcorenas_* lcnet_* *mixnet_* mnasnet_* "
                   "mobilenet_* mobilenet_edgetpu* mobilenetv1* mobilenetv2* *mobilenetv3* *mobilenetv4* semnasnet_* "
                   "spnasnet_* tinynet_*",
                   "conv_stem.weight blocks.0.0.**", "test_efficientnet"),
    _convolutional("mobilenetv5", "mobilenetv5*", "msfa.norm.weight", "mobilenetv5_300m"),
    _convolutional("efficientvim", "efficientvim_*", "weights stages.0.blocks.0.**", "efficientvim_m1"),
    _convolutional("efficientvit-mit", "efficientvit_b* efficientvit_l*", "head.classifier.0.weight",
                   "efficientvit_b0"),
    _convolutional("fasternet", "fasternet_*", "stages.0.blocks.0.mlp.0.weight", "fasternet_t0"),
    _convolutional("fastvit", "fastvit_*", "stem.2.identity.weight", "fastvit_t8", leave="**.pos_emb.**"),
    _convolutional("focalnet", "focalnet_*", "layers.1.downsample.proj.weight", "focalnet_tiny_srf"),
    _convolutional("hgnet", "hgnet*", "head.last_conv.0.weight", "hgnetv2_b0"),
    _convolutional("hrnet", "hrnet_*", "final_layer.0.weight", "hrnet_w18_small"),
    _convolutional("iformer", "iformer_*", "stem.conv3.c.weight", "iformer_t"),
    _convolutional("inception-next", "inception_next_*", "head.fc1.weight stages.0.blocks.0.token_mixer.**",
                   "inception_next_atto"),
    _convolutional("inception", "inception_v* inception_resnet_v2 *_inception_*",
                   "{classif.weight,Conv2d_1a_3x3.bn.weight,features.0.bn.weight}", "inception_v3"),
    _convolutional("lcnetv2", "lcnetv2_*", "stages.2.0.se.fc1.weight", "lcnetv2_small"),
    _convolutional("lowformer", "lowformer_*", "in_conv.conv.weight", "lowformer_b0"),
    _convolutional("mambaout", "mambaout_* test_mambaout", "stages.0.blocks.0.fc1.weight", "test_mambaout"),
    _convolutional("metaformer", "caformer_* convformer_* poolformer*",
                   "head.norm.weight stages.2.blocks.0.norm1.weight", "poolformer_s12"),
    _convolutional("nasnet", "nasnetalarge", "conv0.bn.weight cell_0.**", "nasnetalarge"),
    _convolutional("nextvit", "nextvit_*", "stem.1.norm.weight", "nextvit_small"),
    _convolutional("nfnet", "dm_nfnet_* eca_nfnet_* nf_* nfnet_* test_nfnet", "stages.0.0.conv1.weight", "test_nfnet"),
    _convolutional("pnasnet", "pnasnet5large", "conv_0.bn.weight cell_0.**", "pnasnet5large"),
    _convolutional("pvt-v2", "pvt_v2_*", "stages.0.norm.weight stages.0.blocks.0.mlp.dwconv.weight", "pvt_v2_b0"),
    _convolutional("rdnet", "rdnet_*", "dense_stages.1.0.weight", "rdnet_tiny"),
    _convolutional("regnet", "regnetv_* regnetx_* regnety_* regnetz_0*", "s1.b1.conv1.**", "regnetx_002"),
    _convolutional("res2net", "res2net* res2next*", "layer1.0.bns.0.weight", "res2net50_48w_2s"),
    _convolutional("resnest", "resnest*", "layer1.0.conv2.bn0.weight", "resnest14d"),
    _convolutional("resnetv2", "resnetv2_*", "stages.0.blocks.0.conv1.weight", "resnetv2_18"),
    _convolutional("senet", "legacy_senet* legacy_seresne*", "layer0.bn1.weight", "legacy_seresnet18"),
    _convolutional("resnet",
                   "resnet* resnext* ecaresne* seresne* senet* skresne* wide_resnet* test_resnet gluon_* tv_* ssl_* "
                   "swsl_* ig_*",
                   "layer4.0.conv1.** bn1.weight", "test_resnet"),
    _convolutional("rexnet", "rexnet*", "features.16.bn.weight", "rexnet_100"),
    _convolutional("selecsls", "selecsls*", "head.0.0.weight", "selecsls42"),
    _convolutional("shvit", "shvit_*", "head.l.weight", "shvit_s1"),
    _convolutional("starnet", "starnet_*", "stages.0.1.g.bn.weight", "starnet_s050"),
    _convolutional("tresnet", "tresnet_*", "body.conv1.bn.weight", "tresnet_m"),
    _convolutional("vgg", "vgg*", "features.0.weight pre_logits.fc1.weight", "vgg11"),
    _convolutional("vovnet", "vovnet* ese_vovnet* eca_vovnet*", "stages.0.blocks.0.conv_mid.0.bn.weight",
                   "ese_vovnet19b_dw"),
    _convolutional("xception", "legacy_xception xception* gluon_xception*",
                   "{blocks.0.stack.conv1.conv_dw.weight,block1.rep.0.conv1.weight}", "xception41p"),
    Family(
        "byobnet",
        has=("stages.0.0.**.conv.weight", "stem.**"),
        archs=(
            "bat_resnext26ts", "eca_resne*", "gcresne*", "gernet_*", "lambda_resnet26t", "lambda_resnet50ts",
            "mobileone_*", "repvgg_*", "resnet32ts", "resnet33ts", "resnet51q", "resnet61q", "resnet50_mlp",
            "resnet*_clip_gap", "resnext26ts", "seresnet33ts", "seresnext26ts", "regnetz_*", "test_byobnet",
        ),
        patch=Patch(kernel=None),
        unit=1,
        home_does="nothing to do",
        example={"name": "test_byobnet", **SMALL},
    ),
)  # fmt: skip
