"""Rows as benchmarks publish them: name -> (its rows, the figures that are 1 if all answers are right)."""

from benchmark_places import PLACES

SEVEN = {f"image_{n}": None for n in range(2, 8)}
MME = (
    *("OCR", "artwork", "celebrity", "color", "count", "existence", "landmark", "position", "posters", "scene"),
    *("code_reasoning", "commonsense_reasoning", "numerical_calculation", "text_translation"),
)
CHOICE = {"question": "Which one?\nA: left, B: right", "answer": "B", "image": "a.png"}

PICTURES = {  # benchmark -> its rows, the figures of groups with all answers right
    "MathVista": (
        [
            {
                "pid": "1",
                "question": "How long?",
                "image": "images/1.jpg",
                "decoded_image": "a.png",
                "choices": None,
                "unit": None,
            }
            | {"precision": 1.0, "answer": "1.2", "question_type": "free_form", "answer_type": "float"}
            | {"metadata": {"task": "geometry", "category": "math-targeted-vqa", "skills": ["algebraic", "geometry"]}},
            {
                "pid": "2",
                "question": "Which?",
                "image": "images/2.jpg",
                "decoded_image": "a.png",
                "choices": ["4", "5"],
                "unit": None,
            }
            | {"precision": None, "answer": "5", "question_type": "multi_choice", "answer_type": "text"}
            | {"metadata": {"task": "figure", "category": "general-vqa", "skills": ["statistical"]}},
            {
                "pid": "168",
                "question": "Which graph?",
                "image": "images/168.jpg",
                "decoded_image": "a.png",
                "choices": ["(c)", "(a)", "(e)", "(d)", "(b)"],
                "unit": None,
            }
            | {"precision": None, "answer": "(b)", "question_type": "multi_choice", "answer_type": "text"}
            | {"metadata": {"task": "figure", "category": "general-vqa", "skills": ["statistical"]}},
        ],
        {"task_geometry", "task_figure", "category_general-vqa", "skills_algebraic", "skills_geometry", "skills_mean"},
    ),
    "MathVerse": (
        [
            {"sample_index": "1", "problem_index": "1", "problem_version": "Text Dominant", "image": "a.png"}
            | {"question": "Find it.\nChoices:\nA:1\nB:2", "answer": "B", "question_type": "multi-choice"}
            | {"metadata": {"subject": "Plane Geometry", "subfield": "Angle"}},
            {
                "sample_index": "2",
                "problem_index": "1",
                "problem_version": "Vision Only",
                "image": "a.png",
                "question": "Find it.",
            }
            | {"answer": "2 \\sqrt{3}", "question_type": "free-form", "metadata": {"subject": "Solid Geometry"}},
        ],
        {"problem_version_Text Dominant", "problem_version_Vision Only", "subject_Plane Geometry"},
    ),
    "MMMU": (
        [
            {"id": "validation_Math_1", "question": "What is <image 1>?", "options": "['one', 'two']", "answer": "B"}
            | {"image_1": "a.png", **SEVEN, "question_type": "multiple-choice", "subfield": "Algebra"},
            {"id": "validation_Math_2", "question": "How many?", "options": "[]", "answer": "12"}
            | {"image_1": "a.png", **SEVEN, "question_type": "open", "subfield": "Calculus"},
        ],
        {"subfield_Algebra", "subfield_Calculus", "subfield_mean"},
    ),
    "MMMU-Pro, 10 options": (
        [
            {"id": "test_1", "question": "What is <image 1>?", "options": str([f"o{n}" for n in range(10)]), "answer": "J"}
            | {"image_1": "a.png", **SEVEN, "subject": "History"}
        ],
        {"subject_History"},
    ),
    "MMMU-Pro, vision": (
        [{"id": "test_1", "image": "a.png", "options": "['x', 'y']", "answer": "B", "subject": "Art"}],
        {"subject_Art"},
    ),
    "MMStar": (
        [{"index": n, **CHOICE, "category": c, "l2_category": "count", "meta_info": {}} for n, c in enumerate(("math", "logic"))],
        {"category_math", "category_logic", "category_mean", "l2_category_count"},
    ),
    "AI2D": ([{"question": "Which?", "options": ["a", "b", "c", "d"], "answer": "2", "image": "a.png"}], set()),
    "ChartQA": (
        [
            {"type": "human_test", "question": "How many?", "answer": "14", "image": "a.png"},
            {"type": "augmented_test", "question": "Which?", "answer": "Inspired", "image": "a.png"},
        ],
        {"type_human_test", "type_augmented_test"},
    ),
    "DocVQA": (
        [
            {
                "questionId": "1",
                "question": "Which?",
                "question_types": ["form", "layout"],
                "image": "a.png",
                "answers": ["ITC", "itc Ltd"],
            }
        ],
        {"question_types_form", "question_types_layout"},
    ),
    "InfographicVQA": (
        [{"questionId": "1", "question": "Which?", "answer_type": ["single span"], "image": "a.png", "answers": ["12 percent"]}],
        {"answer_type_single span"},
    ),
    "TextVQA": ([{"question_id": 1, "question": "Which?", "image": "a.png", "answers": ["nokia"] * 9 + ["toyota"]}], set()),
    "OCRBench": (
        [
            {
                "dataset": "IIIT5K",
                "question": "What is written?",
                "question_type": "Regular Text Recognition",
                "answer": ["CENTRE"],
            }
            | {"image": "a.png"},
            {"dataset": "HME100k", "question": "The formula?", "question_type": "Handwritten Mathematical Expression Recognition"}
            | {"answer": ["x ^ { 2 }"], "image": "a.png"},
        ],
        {"question_type_Regular Text Recognition", "dataset_HME100k"},
    ),
    "HallusionBench": (
        [
            {
                "category": "VD",
                "subcategory": "illusion",
                "visual_input": "1",
                "set_id": "0",
                "figure_id": figure,
                "question_id": n,
            }
            | {"question": "Is it?", "gt_answer": answer, "filename": "./1.png", "image": "a.png"}
            for n, answer, figure in (("0", "1", "0"), ("1", "0", "0"), ("0", "0", "1"))
        ]
        + [
            {"category": "VS", "subcategory": "chart", "visual_input": "0", "set_id": "0", "figure_id": "0", "question_id": "0"}
            | {"question": "Is it?", "gt_answer": "1", "filename": None, "image": None}
        ],
        {"category_VD", "category_VS", "subcategory_illusion", "fAcc", "qAcc"},
    ),
    "POPE": (
        [
            {
                "question_id": str(n),
                "question": "Is there a snowboard in the image?",
                "answer": a,
                "category": c,
                "image": "a.png",
            }
            for n, (a, c) in enumerate((("yes", "adversarial"), ("no", "adversarial"), ("no", "random")))
        ],
        {"category_adversarial", "category_random", "f1", "precision", "recall", "yes_share"},
    ),
    "POPE, its own JSON lines": (
        [
            {"question_id": n, "image": "COCO_val2014_1.png", "text": "Is there a dog?", "label": a}
            for n, a in ((1, "yes"), (2, "no"))
        ],
        {"f1"},
    ),
    "RealWorldQA": (
        [
            {"image": "a.png", "question": "In which direction?\nA. left\nB. right", "answer": "B"},
            {"image": "a.png", "question": "How many?", "answer": "2"},
            {"image": "a.png", "question": "Is it red?", "answer": "Yes"},
        ],
        set(),
    ),
    "V*Bench": (
        [
            {
                "question_id": "0",
                "image": "a.png",
                "text": "Which colour?\n(A) red\n(B) blue",
                "label": "B",
                "category": "direct_attributes",
            }
        ],
        {"category_direct_attributes"},
    ),
    "BLINK": (
        [
            {"idx": "val_Counting_1", "question": "How many?", "prompt": "How many? (A) 1 (B) 2", "sub_task": "Counting"}
            | {"choices": ["1", "2"], "answer": "(B)", "image_1": "a.png", "image_2": "a.png", "image_3": None, "image_4": None}
        ],
        {"sub_task_Counting", "sub_task_mean"},
    ),
    "WeMath": (
        [
            {"ID": "1", "split": "testmini", "knowledge concept": "Area", "question": "How large?", "option": "A. 1; B. 2; C. 3"}
            | {"answer": "C", "image_path": "a.png", "key": key, "question number": 1}
            for key in ("2steps_1", "2steps_2", "2steps_multi")
        ],
        {"key_2steps_1", "key_2steps_multi", "score_strict", "score_loose", "complete_mastery_strict"},
    ),
    "LogicVista": ([{"question_id": 0, "image": "a.png", "question": "Which? A, B or C", "answer": "C"}], set()),
    "DynaMath": (
        [
            {"index": f"{n}-{variant}", "image": "a.png", "question": "How long?", "answer": answer, "answer_type": kind}
            | {"subject": "algebra", "knowledge_level": "undergraduate", "qid": n, "varid": variant}
            for n, (answer, kind) in enumerate((("2.0944", "float"), ("B", "multiple choice"), ("May", "text")))
            for variant in (1, 2)
        ]
        + [
            {"index": f"{n}-1", "image": "a.png", "question": "How many?", "answer": answer, "answer_type": kind}
            | {"subject": "statistics", "knowledge_level": "high school", "qid": n, "varid": 1}
            for n, (answer, kind) in enumerate((("49", "single answer"), ("-15.700000000000001", "int")), 465)
        ],
        {"subject_algebra", "knowledge_level_high school", "worst", "worst_subject_statistics"},
    ),
    "DynaMath, one variant": (
        [
            {"id": str(n), "question": "Find f(0).", "image": "images/1.png", "decoded_image": "a.png", "ground_truth": answer}
            | {"answer_type": kind, "subject": "puzzle test", "knowledge_level": "high school"}
            for n, (answer, kind) in enumerate((("-3.162", "float"), ("B", "multiple choice"), ("[0, 1]", "text")))
        ],
        {"subject_puzzle test", "knowledge_level_high school"},
    ),
    "CV-Bench": (
        [
            {"idx": n, "type": type, "task": task, "source": source, "image": "a.png", "question": "How many?"}
            | {"choices": ["1", "2"], "answer": "(B)", "prompt": "How many? (A) 1 (B) 2", "filename": "a.png"}
            for n, (type, task, source) in enumerate(
                (("2D", "Count", "ADE20K"), ("2D", "Relation", "COCO"), ("3D", "Depth", "Omni3D"))
            )
        ],
        {"source_ADE20K", "task_Depth", "type_2D", "cv_bench"},
    ),
    "HR-Bench, 4K and 8K": (
        [
            {"index": n, "question": "Which colour?", "image": "a.png", "A": "red", "B": "blue", "C": "green", "D": "white"}
            | {"answer": "D", "category": kind, "cycle_category": n}
            for n, kind in enumerate(("single", "cross"))
        ],
        {"category_single", "category_cross", "cycle_category_mean"},
    ),
    "MME-RealWorld": (
        [
            {"index": 0, "bytes": "a.png", "path": "1.png", "question": "Which?", "answer": "C", "category": "Perception/OCR"}
            | {"multi-choice options": ["(A) a", "(B) b", "(C) c", "(D) d", "(E) None of them"], "l2-category": "license"}
        ],
        {"category_Perception/OCR", "l2-category_license"},
    ),
    "VisuLogic": (
        [{"id": "00000", "image_path": "a.png", "question": "Which?\nA: A\nB: B\nC: C\nD: D", "label": "C", "tag": "Position"}],
        {"tag_Position"},
    ),
    "EMMA, EMMA-mini": (
        [
            {"pid": f"{subject}_1", "question": "Which? <image_1>", "options": options, "answer": answer, "type": kind}
            | {"image_1": "a.png", "image_2": None, "image_3": None, "image_4": None, "image_5": None, "solution": None}
            | {"subject": subject, "task": "t", "category": "c", "source": "s", "context": "Look."}
            for subject, options, answer, kind in (
                ("Math", ["left", "right"], "B", "Multiple Choice"),
                ("Chemistry", [], "3", "Open-ended"),
            )
        ],
        {"subject_Math", "subject_Chemistry", "category_c"},
    ),
    "ERQA": (
        [
            {"question_id": "1", "question": "Which? Choices: A. Up. B. Down.", "question_type": "Action Reasoning"}
            | {"images": ["a.png", "a.png"], "answer": "B", "visual_indices": [0, 0]}
        ],
        {"question_type_Action Reasoning"},
    ),
    "SAT": (
        [
            {"image_bytes": ["a.png", "a.png"], "question": "Which way?", "answers": ["left", "right"]}
            | {"correct_answer": "right", "question_type": "obj_movement"}
        ],
        {"question_type_obj_movement"},
    ),
    "CountBenchQA": ([{"image": "a.png", "text": "Six cups", "question": "How many cups are there?", "number": 6}], set()),
    "TallyQA": (
        [
            {"image": "a.png", "image_id": 1, "question_id": n, "question": "How many dogs?", "answer": 2 - n}
            | {"data_source": "imported_genome", "issimple": n == 1}
            for n in (0, 1)
        ],
        {"issimple_True", "issimple_False"},
    ),
    "CharXiv, reasoning": (
        [
            {"image": "a.png", "category": "cs", "year": "20", "original_id": "2004.1", "reasoning_q": "Which line is highest?"}
            | {"reasoning_a": "the red one", "reasoning_q_source": 1, "descriptive_q1": 3, "descriptive_a1": "Not Applicable"}
        ],
        {"reasoning_q_source_1"},
    ),
    "MMBench, VLMEvalKit's file": (
        [
            {"index": n + turn * 1_000_000, "question": f"Which, {n}?", "hint": "", "category": "ocr", "l2-category": "coarse"}
            | {"A": "left", "B": "right", "C": "", "D": "", "answer": "AB"[turn], "image": "a.png"}
            for n in (3, 8)
            for turn in (0, 1)
        ],
        {"circular", "circular_category_ocr", "circular_l2-category_coarse"},
    ),
    "MME": (
        [
            {"question_id": f"{category}/1.png", "category": category, "image": "a.png"}
            | {"question": f"Is it {word}? Please answer yes or no.", "answer": word}
            for category in MME
            for word in ("Yes", "No")
        ],
        {"category_OCR", "both", "both_category_OCR"},
    ),
    "SEED-Bench": (
        [
            {
                "question_id": "1",
                "question": "Which?",
                "choice_a": "One",
                "choice_b": "Two",
                "choice_c": "Three",
                "choice_d": "Four",
            }
            | {"answer": "C", "image": ["a.png"], "data_type": "image", "question_type_id": 1}
        ],
        {"data_type_image", "question_type_id_1"},
    ),
    "ScienceQA": (
        [
            {"question": "Which?", "choices": ["no", "yes"], "answer": 1, "hint": "It is warm.", "image": "a.png"}
            | {"subject": "natural science", "grade": "grade5", "topic": "physics"}
        ],
        {"subject_natural science", "grade_grade5"},
    ),
    "MathVision": (
        [
            {
                "id": "1",
                "question": "Which? <image1>",
                "options": ["A", "B", "C", "D", "E"],
                "answer": "D",
                "image": "images/1.jpg",
            }
            | {"decoded_image": "a.png", "subject": "counting", "level": 3},
            {"id": "2", "question": "How many? <image1>", "options": [], "answer": "18", "image": "images/2.jpg"}
            | {"decoded_image": "a.png", "subject": "algebra", "level": 5},
        ],
        {"subject_counting", "subject_algebra", "level_3", "level_5"},
    ),
    "VQA v2": (
        [
            {"question": "What?", "answers": [{"answer": "a dog", "answer_id": n} for n in range(10)], "image": "a.png"}
            | {"question_type": "what", "answer_type": "other"}
        ],
        {"answer_type_other"},
    ),
    "OK-VQA, VizWiz": ([{"question": "What?", "answers": ["dog"] * 10, "image": "a.png"}], set()),
}
PICTURES |= PLACES
