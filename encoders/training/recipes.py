"""Training recipes: named settings. Values are strings, as for ``--set``.

``small`` and recipes whose names begin with ``photos`` train on thousands of pictures in minutes on
two cores; their settings were tuned on held-out pictures. The other recipes are the published
settings, which need a GPU and a hundred thousand pictures. They follow the authors' code where it
differs from the paper (TERN: learning rate 2e-6 instead of 2e-5, batches of 80 instead of 90). An
epoch is one pass over the pictures with one caption each; five such epochs correspond to one epoch
in the authors' code.
"""

FROM_SCRATCH = {
    "text_lr": "1",
    "visual_width": "256",
    "joint_width": "256",
    "region_power": "0.5",
    "batch_size": "64",
    "captions_per_picture": "2",
    "lr": "1e-3",
    "dropout": "0",
    "held_out": "200",
}

SMALL = {
    **FROM_SCRATCH,
    "kind": "tern",
    "text": "small",
    "text_layers": "2",
    "visual_layers": "1",
    "feedforward": "512",
    "epochs": "7",
    "warmup": "40",
    "negatives_first": "60",
    "negatives_last": "6",
}

# Words and regions are matched individually, so that "red" and "rocket" must match the same region.
# I-CLS is trained as well, for the first stage of a search. The network is small enough to train
# from scratch in four minutes on one core.
SCENES = {
    **FROM_SCRATCH,
    "kind": "teran",
    "text": "small-gru",
    "text_layers": "1",
    "visual_layers": "0",
    "joint_layers": "0",
    "feedforward": "256",
    "vector": "gathered",
    "scaled": "1",
    "box_weight": "8",
    "stop_words": "0",
    "last_word": "1",
    "objective": "matching+alignment",
    "loss": "contrast",
    "temperature": "0.033",
    "alignment_temperature": "0.1",
    "fragments": "0.5",
    "opposites": "0.5",
    "warm_start": "0",
    "epochs": "24",
    "warmup": "50",
    "keep": "last",
}

ON_PHOTOS = {
    "region_power": "0.5",
    "loss": "contrast",
    "temperature": "0.05",
    "batch_size": "128",
    "captions_per_picture": "2",
    "region_keep": "0.7",
    "feature_keep": "0.8",
    "weight_decay": "0.05",
    "held_out": "500",
}

PHOTOS = {
    **ON_PHOTOS,
    "kind": "tern",
    "text": "minilm",
    "text_layers": "6",
    "text_lr": "0.17",
    "visual_width": "768",
    "visual_layers": "1",
    "joint_width": "384",
    "feedforward": "512",
    "residual": "1",
    "epochs": "4",
    "lr": "4e-4",
    "warmup": "40",
}

# mrsw sums over words, so the temperature is higher. Rows must stay distinct, so averaging is low.
ALIGNED = {**PHOTOS, "averaging": "1", "alignment_temperature": "0.5"}

VSRN_PHOTOS = {
    **ON_PHOTOS,
    "kind": "vsrn",
    "text": "minilm-words",
    "text_layers": "1",
    "text_lr": "0.1",
    "objective": "matching+generation",
    "generation_hidden": "128",
    "generation_weight": "0.01",
    "width": "384",
    "norm_axis": "row",
    "epochs": "8",
    "lr": "3e-4",
    "warmup": "80",
}

PUBLISHED = {
    "text": "bert-base-uncased",
    "text_layers": "6",
    "text_lr": "1",
    "batch_size": "80",
    "captions_per_picture": "1",
    "epochs": "150",
    "patience": "150",
    "held_out": "1000",
    "lr": "2e-6",
    "schedule": "steps",
    "decay": "0.1",
    "decay_epochs": "150",
    "warmup": "1000",
    "weight_decay": "0",
    "clip": "2",
    "summed": "1",
    "negatives_first": "1",
    "negatives_last": "1",
    "warm_start": "0",
    "average": "0",
    "mixed": "0",
}

TERN = {**PUBLISHED, "kind": "tern", "choose": "ndcg-image"}

TERAN = {
    **PUBLISHED,
    "kind": "teran",
    "objective": "alignment",
    "pooling": "mrsw",
    "choose": "ndcg",
    "lr": "1e-5",
    "batch_size": "40",
    "decay_epochs": "100",
    "warmup": "0",
}

VSRN = {
    **PUBLISHED,
    "kind": "vsrn",
    "text": "words",
    "text_layers": "1",
    "objective": "matching+generation",
    "lr": "2e-4",
    "batch_size": "128",
    "decay_epochs": "75",
    "warmup": "0",
}

RECIPES: dict[str, dict[str, str]] = {
    "small": SMALL,
    "scenes": SCENES,
    "photos": PHOTOS,
    # The score is the mean over words, because sums favour long captions for every picture.
    "photos-teran": {
        **ALIGNED,
        "kind": "teran",
        "objective": "alignment",
        "pooling": "mravgw",
        "alignment_temperature": "0.05",
    },
    "photos-align": {
        **ALIGNED,
        "objective": "matching+alignment",
        "uncertainty": "1",
        "averaging": "4",
    },
    "photos-vsrn": VSRN_PHOTOS,
    "photos-vsrnpp": {
        **VSRN_PHOTOS,
        "kind": "vsrnpp",
        "text": "minilm",
        "text_layers": "6",
        "text_lr": "0",
        "sinkhorn": "20",
        "loss": "hinge",
        "negatives_first": "30",
        "negatives_last": "30",
        "epochs": "4",
    },
    "tern": TERN,
    "tern-align": {**TERN, "objective": "matching+alignment", "uncertainty": "1"},
    "teran": TERAN,
    "teran-f30k": {**TERAN, "batch_size": "30", "warmup": "1000"},
    "vsrn": {**VSRN, "variant": "coco"},
    "vsrn-f30k": {**VSRN, "variant": "f30k", "decay_epochs": "50"},
    "vsrnpp": {
        **VSRN,
        "kind": "vsrnpp",
        "text": "bert-base-uncased",
        "text_layers": "12",
        "text_lr": "0",
        "sinkhorn": "20",
        "epochs": "80",
        "decay_epochs": "40",
    },
}
