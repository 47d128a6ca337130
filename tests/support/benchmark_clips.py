"""Rows as benchmarks of clips and sounds publish them: name -> (its rows, the figures that are 1 if all answers are right)."""

CLIPS = {
    "Video-MME": (
        [
            {
                "video_id": "001",
                "duration": length,
                "domain": "Knowledge",
                "sub_category": "History",
                "videoID": "one",
                "question": "What?",
            }
            | {
                "question_id": f"001-{n}",
                "task_type": "Counting Problem",
                "options": ["A. a.", "B. b.", "C. c.", "D. d."],
                "answer": "C",
            }
            for n, length in enumerate(("short", "long"))
        ],
        {"duration_short", "duration_long", "duration_mean", "domain_Knowledge", "task_type_Counting Problem"},
    ),
    "MVBench": (
        [
            {
                "video": "one.mp4",
                "question": "Which?",
                "candidates": ["a cup", "a bag"],
                "answer": "a bag",
                "start": 0.5,
                "end": 1.0,
            },
            {"video": "one.mp4", "question": "Where?", "candidates": ["left", "right"], "answer": "right"},
            {"video": "friends_s01", "question": "Who?", "candidates": ["Joey", "Ross"], "answer": "Ross", "start": 1, "end": 3},
        ],
        {"table_rows", "table_mean"},
    ),
    "TempCompass, multi-choice": (
        [
            {"video_id": "one", "question": f"What is it doing?\nA. running\n{second}", "answer": "B. drilling", "dim": "action"}
            for second in ("B. drilling", "B. drilling\nC.Both", "B.drilling")
        ],
        {"dim_action"},
    ),
    "TempCompass, yes or no": (
        [{"video_id": "one", "question": "Is it running?", "answer": "no", "dim": "speed"}],
        {"dim_speed"},
    ),
    "TempCompass, caption matching": (
        [
            {
                "video_id": "one",
                "question": f"Which fits?\n{kind} {a}: He runs.\n{kind} {b}: He sits.",
                "answer": f"{kind} {b}: He sits.",
            }
            | {"dim": "action"}
            for kind, a, b in (("Option", 1, 2), ("Sentence", "A", "B"), ("Caption", "A", "B"))
        ],
        {"dim_action"},
    ),
    "LongVideoBench": (
        [
            {
                "video_id": "86Cx",
                "question": "Who?",
                "question_wo_referring_query": "Who?",
                "candidates": ["a", "b", "c"],
                "level": "L1",
            }
            | {
                "correct_choice": 2,
                "topic_category": "NP",
                "question_category": "S2E",
                "subtitle_path": "one.json",
                "duration": 2.0,
            }
            | {"id": "86Cx_0", "video_path": "one.mp4", "duration_group": 15, "starting_timestamp_for_subtitles": 0}
        ],
        {"duration_group_15", "question_category_S2E"},
    ),
    "MLVU": (
        [
            {
                "video": "one.mp4",
                "duration": 2.0,
                "question": "What?",
                "candidates": ["a", "b"],
                "answer": "b",
                "question_type": kind,
            }
            for kind in ("plotQA", "count")
        ],
        {"question_type_plotQA", "question_type_count", "question_type_mean"},
    ),
    "VSI-Bench": (
        [
            {
                "id": 0,
                "dataset": "arkit",
                "scene_name": "41069025",
                "question_type": "object_counting",
                "question": "How many chairs?",
            }
            | {"ground_truth": "4", "options": None},
            {"id": 1, "dataset": "arkit", "scene_name": "41069025", "question_type": "object_rel_distance", "question": "Which?"}
            | {"ground_truth": "B", "options": ["A. sofa", "B. stove"]},
        ],
        {"question_type_object_counting", "question_type_object_rel_distance", "vsi_bench"},
    ),
    "EgoSchema, its subset with answers": (
        [
            {"question_idx": "1", "video_idx": "one", "question": "Why?", "answer": "3"}
            | {"option": ["A. a.", "B. b.", "C. c.", "D. d.", "E. e."]}
        ],
        set(),
    ),
    "NExT-QA, multi-choice": (
        [
            {"video": "one", "frame_count": 8, "width": 32, "height": 32, "question": "why did he run", "answer": 4, "qid": 1}
            | {"type": kind, **{f"a{n}": f"reason {n}" for n in range(5)}}
            for kind in ("CW", "TN")
        ],
        {"type_CW", "type_TN"},
    ),
    "PerceptionTest, multi-choice": (
        [
            {"video_name": "one", "question_id": "1", "question": "Is it on?", "options": ["yes", "no", "unclear"]}
            | {"answer_id": "2", "area": "physics", "reasoning": "descriptive", "tag": ["motion"]}
        ],
        {"area_physics", "reasoning_descriptive"},
    ),
    "LVBench": (
        [
            {"key": "one", "uid": "1", "video_path": "one.mp4", "question": "Who?\n(A) a\n(B) b\n(C) c\n(D) d", "answer": "C"}
            | {"question_type": ["entity recognition", "reasoning"], "time_reference": "00:00-00:01"}
        ],
        {"question_type_reasoning"},
    ),
    "TOMATO": (
        [
            {"id": "1", "video_path": "one.mp4", "question": "Which way?", "options": ["left", "right", "up"], "answer": 2}
            | {"motion_type": "direction", "demonstration_type": "human", "variation": {"counterfactual": 0}}
        ],
        {"motion_type_direction", "demonstration_type_human"},
    ),
    "Video-Holmes": (
        [
            {
                "video ID": "one",
                "Question ID": "1",
                "Question Type": "SR",
                "Question": "Why?",
                "Answer": "C",
                "Explanation": "So.",
            }
            | {"Options": dict(zip("ABCDEF", ("a man", "a dog", "a cat", "a cow", "a hen", "a pig"), strict=True))}
        ],
        {"Question Type_SR"},
    ),
    "Video-MMMU, perception and comprehension": (
        [{"id": "one", "question": "Which?", "options": ["one", "two", "three"], "answer": "B", "question_type": "perception"}],
        {"question_type_perception"},
    ),
    "Charades-STA": ("one 0.0 1.5##a person sits down.\n", {"mIoU", "R1@0.7"}),
    "ActivityNet Captions": ({"one": {"duration": 2.0, "timestamps": [[0, 1.5]], "sentences": ["A man sits."]}}, {"R1@0.5"}),
    "QVHighlights, one span": (
        [
            {"qid": 8737, "query": "A family plays.", "duration": 2, "vid": "one", "relevant_windows": [[0, 0.5], [1, 2]]}
            | {"relevant_clip_ids": [0], "saliency_scores": [[4, 4, 4]]}
        ],
        {"R1@0.5", "R1@0.7"},
    ),
}
OPTIONS = {
    "EgoSchema, its subset with answers": ("D", ["a.", "b.", "c.", "d.", "e."]),
    "NExT-QA, multi-choice": ("E", [f"reason {n}" for n in range(5)]),
    "PerceptionTest, multi-choice": ("C", ["yes", "no", "unclear"]),
    "LVBench": ("C", ["a", "b", "c", "d"]),
    "TOMATO": ("C", ["left", "right", "up"]),
    "Video-Holmes": ("C", ["a man", "a dog", "a cat", "a cow", "a hen", "a pig"]),
    "Video-MMMU, perception and comprehension": ("B", ["one", "two", "three"]),
}
"""Benchmark of clips -> the letter of the right option and the options of its rows."""
CLIPS |= {f"QVHighlights{more}": (CLIPS["QVHighlights, one span"][0], set()) for more in ("", ", highlights", ", saliency")}
SOUNDS = {
    "MMAU": (
        [
            {
                "id": "1",
                "audio_id": "./test-mini-audios/a.wav",
                "question": "Which?",
                "choices": ["a dog", "a cat"],
                "answer": "a cat",
            }
            | {
                "dataset": "x",
                "task": task,
                "split": "test-mini",
                "category": "Reasoning",
                "sub-category": "Ambient",
                "difficulty": "easy",
            }
            for task in ("sound", "music")
        ],
        {"task_sound", "task_music", "difficulty_easy", "sub-category_Ambient"},
    ),
    "MMAR": (
        [
            {
                "id": "1",
                "audio_path": "./test-mini-audios/a.wav",
                "question": "Which?",
                "choices": ["one", "two"],
                "answer": "two",
            }
            | {"modality": "mix-sound-music", "category": "Signal Layer", "sub-category": "Anomaly", "language": "en"}
        ],
        {"modality_mix-sound-music", "category_Signal Layer"},
    ),
    "AIR-Bench, foundation": (
        [
            {"path": "a.wav", "question": "Which?", "choice_a": "dog", "choice_b": "cat", "choice_c": "owl", "choice_d": None}
            | {"answer_gt": "owl", "task_name": "Sound_QA", "dataset_name": "avqa", "uniq_id": 1}
        ],
        {"task_name_Sound_QA"},
    ),
}
