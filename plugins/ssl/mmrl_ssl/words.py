"""SSL4RL's prompts, word for word (build_benchmarks/make*_*.py). They follow the pictures."""

ROTATION = """\


These are two images. The second image is a rotated version of the first image.\x20
Please determine how many degrees the second image has been rotated **counter-clockwise** relative to the first image.
The granuality of rotation is {0} degrees, meaning the second image could have been rotated by 0, {0}, {1}, ..., {2} degrees.

You must reason step-by-step and then provide the final answer.

The output **must strictly follow** this format:
<think> your reasoning here </think> <answer>number_of_degrees</answer>"""

CONTRASTIVE = """\


The provided images are augmentations of the same original image or two different images.
The augmentations may include random cropping, color adjustments, grayscale conversion, blurring, and flipping.
Please think step-by-step and determine if these two images are possibly derived from the same original image.
If the provided images are from the same original image, respond with "positive"; if they correspond to different original \
images, respond with "negative".

Your answer should strictly follow this format:

<think>your step-by-step reasoning here</think> <answer>positive/negative</answer>"""

POSITION = """\


The second image in an augmented version of a crop in the first image. The augmentations may include grayscale, color jitter, \
solarization, etc. Please determine which part of the first image the second image is from. The answer is strictly limited to \
four cases: top-left, top-right, bottom-left and bottom-right.

Your answer should strictly follow this format:

<think>your step-by-step reasoning here</think> <answer>top-left/top-right/bottom-left/bottom-right</answer>"""

THINK = "\nThink in <think> </think> tags, then give the answer in <answer> </answer> tags."
