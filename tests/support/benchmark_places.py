"""Rows of benchmarks about where things are and how pictures differ: name -> (its rows, the figures that are 1 if all answers
are right)."""

PLACES = {
    "PixMo-Count": ([{"image": "a.png", "question": "<image>How many dogs are there?", "answer": "3"}], set()),
    "MMVP": (
        [
            {"Index": n, "Question": "Are the wings open?", "Options": "(a) Open (b) Closed", "Correct Answer": answer}
            | {"image": "a.png"}
            for n, answer in ((1, "(a)"), (2, "(b)"))
        ],
        {"pair"},
    ),
    "MuirBench": (
        [
            {"idx": "1", "task": "Counting", "image_relation": "Ordered_Pages", "image_type": "Slides"}
            | {"question": "<image> How many are in <image>?", "options": ["one", "two"], "answer": "B"}
            | {"image_list": ["a.png", "a.png"], "counterpart_idx": "2"},
            {"idx": "2", "task": "Visual Retrieval", "image_relation": "Multiview", "image_type": "Photo"}
            | {"question": "<image> Which is the same?", "options": ["<image>", "<image>", "None of the choices provided"]}
            | {"answer": "C", "image_list": ["a.png"] * 3, "counterpart_idx": "1"},
        ],
        {"task_Counting", "task_Visual Retrieval", "image_relation_Multiview"},
    ),
    "MMSI-Bench": (
        [
            {"id": 0, "images": ["a.png", "a.png"], "question": "Which way?\nOptions: A: left, B: right, C: up, D: down"}
            | {"answer": "C", "question_type": "Motion (Cam.)", "thought": "It goes up."}
        ],
        {"question_type_Motion (Cam.)"},
    ),
    "MindCube": (
        [
            {"id": "among_1", "question": "<image>Which is left of it? A. lamp B. bed", "gt_answer": "B", "category": ["P-A"]}
            | {"images": ["a.png", "a.png"], "type": "among", "input_prompt": "Think. Which is left of it? A. lamp B. bed"}
        ],
        set(),
    ),
    "EmbSpatial-Bench": (
        [
            {"question_id": "mp3d_0", "question": "Which is left?", "answer_options": ["a lamp", "a bed", "a sofa", "a desk"]}
            | {"answer": 2, "data_source": "mp3d", "relation": "left", "image": "a.png", "objects": {}}
        ],
        {"data_source_mp3d", "relation_left"},
    ),
    "OmniSpatial": (
        [
            {"id": "1", "image": "a.png", "question": "Which?", "options": ["a", "b", "c"], "answer": "1"}
            | {"task_type": "Dynamic_Reasoning", "sub_task_type": "Manipulation"}
        ],
        {"task_type_Dynamic_Reasoning", "sub_task_type_Manipulation"},
    ),
    "3DSRBench": (
        [
            {"index": f"H{n}", "qid": "H-0", "question": "Which?", "A": "left", "B": "right", "C": None, "D": None, "answer": a}
            | {"category": "height_higher", "image": "a.png"}
            for n, a in enumerate("AB")
        ],
        {"category_height_higher", "circular", "circular_category_height_higher"},
    ),
    "VisualPuzzles": (
        [
            {"id": n, "category": "Spatial", "image": "a.png", "question": "Which?", "options": options, "answer": "B"}
            for n, options in enumerate((["a", "b", "c", "d"], None))
        ],
        {"category_Spatial"},
    ),
    "SEED-Bench-2-Plus": (
        [
            {"question_id": "1", "question": "Which?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d"}
            | {"answer": "C", "question_image_type": "chart", "image": "a.png"}
        ],
        {"question_image_type_chart"},
    ),
}
REGIONS = {
    "Where2Place": [{"question_id": 0, "image": "a.png", "mask": "m.png", "question": "Find a vacant place left of the cup."}],
    "RefSpatial-Bench": [
        {"id": 0, "image": "a.png", "mask": "m.png", "object": "the left cup", "prompt": "Point at the left cup.", "step": 1}
        | {"suffix": "Your answer should be a list of tuples."}
    ],
    "RoboSpatial-Home, context": [
        {"category": "context", "question": "Point into the space left of the box.", "answer": "[(0.2, 0.3)]", "img": "a.png"}
        | {"depth_image": "a.png", "mask": "m.png"}
    ],
}
"""Benchmark -> rows of `grounding/region-data`."""
EXPRESSIONS = {
    "RefCOCO, RefCOCO+, RefCOCOg": [
        {
            "question_id": "8",
            "image": "a.png",
            "question": "Please carefully observe the area circled in the image and come up with a caption for the area.",
            "answer": ["left cat", "the cat on the left"],
            "bbox": [4.5, 5.0, 10.25, 20.0],
            "iscrowd": 0,
            "file_name": "COCO_train2014_000000000001_0.jpg",
        }
    ]
}
"""Benchmark -> rows of `grounding/refer-data`."""
