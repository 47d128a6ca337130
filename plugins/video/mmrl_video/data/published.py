"""The prompts of published systems, word for word.

Video-R1 (Feng et al. 2025), src/r1-v/src/open_r1/grpo.py. Video-RTS (Wang et al. 2025), src/training_files/grpo.py. SEED-Bench-R1
(Chen et al. 2025), src/open_r1_egoplan/grpo.py. Temporal-R1 (Li et al. 2025), examples/run_qwen2_5_vl_3b_tvg.sh: a system prompt;
the words of its questions stand in its data. TimeZero (Wang et al. 2025), src/open_r1. Time-R1 (Wang et al. 2025),
src/time_r1/rl/timer1_trainer.py, its `v1`. VideoChat-R1 (Li et al. 2025), its prompts that think.
"""

from __future__ import annotations

from typing import Any

from mmrl import Message, user_message

VIDEO_R1 = (
    "{0}\n"
    "Please think about this question as if you were a human pondering deeply. "
    "Engage in an internal dialogue using expressions such as 'let me think', 'wait', 'Hmm', 'oh, I see', 'let's break it down', "
    "etc, or other natural language thought expressions "
    "It's encouraged to include self-reflection or verification in the reasoning process. "
    "Provide your detailed reasoning between the <think> </think> tags, and then give your final answer between the <answer> "
    "</answer> tags."
)
_NUMBER = " Please provide the numerical value (e.g., 42 or 3.14) within the <answer> </answer> tags."
_LETTER = " Please provide only the single option letter (e.g., A, B, C, D, etc.) within the <answer> </answer> tags."
VIDEO_R1_KINDS = {
    "multiple choice": _LETTER,
    "numerical": _NUMBER,
    "OCR": (
        " Please transcribe text from the image/video clearly and provide your text answer within the <answer> </answer> tags."
    ),
    "free-form": " Please provide your text answer within the <answer> </answer> tags.",
    "regression": _NUMBER,
}
VIDEO_RTS = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
    "<think> reasoning process here </think><answer> answer here </answer>"
    "{0}\n" + _LETTER
)
SEED_BENCH_R1 = (
    "{0} Output the thinking process in <think> </think> and final answer in <answer> </answer> tags, i.e., "
    "<think> reasoning process here </think><answer> answer here </answer>. "
)
TEMPORAL_R1_SYSTEM = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the final answer.\n"
    " The reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in <answer> </answer> "
    "tags. Output the final answer in JSON format."
)
_TIMES = (
    "Then, provide the start and end times (in seconds, precise to two decimal places) in the format "
    '"start time to end time" within the <answer> </answer> tags. For example: "12.54 to 17.83".'
)
_EVENT = 'To accurately pinpoint the event "{0}" in the video, determine the precise time period of the event.'
_RANGES = (
    "Output your thought process within the <think> </think> tags, including analysis with either specific timestamps (xx.xx) or "
    "time ranges (xx.xx to xx.xx) in <timestep> </timestep> tags."
)
TIMEZERO = f"{_EVENT}\n\n{_RANGES}\n\n{_TIMES}"
TIME_R1 = TIMEZERO.replace("specific timestamps (xx.xx) or time ranges", "specific time ranges")
VIDEOCHAT_R1_GQA = (
    'Answer the question: "{0}" according to the content of the video. Select the answer from :{1}.\n\n'
    f"{_RANGES}\n\n"
    "Then, provide your answer within the <answer> </answer> tags, output the corresponding letter of the option. At the same "
    "time, in the <glue> </glue> tags, present the precise time period in seconds of the video clips on which you base your "
    "answer to this question in the format of [(s1, e1), (s2, e2), ...]. For example: <answer>A</answer><glue>[(5.2, 10.4)]"
    "</glue>.\n"
)
VIDEOCHAT_R1_TRACKING = (
    'Track the "{0}" in the video based on its initial coordinates "{1}". The output should be a list containing eight sublists. '
    "Each sublist includes four normalized coordinates [x0, y0, x1, y1] representing the bounding box of the object at specific "
    "time intervals.\n\n"
    "Output your thought process within the <think> </think> tags.\n\n"
    "Provide your answer within the <answer> </answer> tags as a list of eight sublists, where each sublist contains the "
    "normalized coordinates [x0, y0, x1, y1]. For example: <answer>[[0.1, 0.5, 0.3, 0.55], [0.72, 0.25, 0.84, 0.43], ...]"
    "</answer>.\n"
)
EVENTS = {"timezero": TIMEZERO, "time-r1": TIME_R1, "videochat-r1": TIMEZERO}
"""Style -> prompt about a sentence."""


def text_first(text: str, *clips: Any) -> Message:
    """A user message with its text before the clip, as in TimeZero, Time-R1 and VideoChat-R1."""
    message = user_message(text, *clips)
    return {**message, "content": [message["content"][-1], *message["content"][:-1]]}


def event(sentence: str) -> str:
    """A sentence in the form that TimeZero, Time-R1 and VideoChat-R1 quote: small letters, no full stop."""
    return sentence.strip().lower().removesuffix(".")
