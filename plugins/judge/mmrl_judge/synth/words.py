"""What SynthRL's models are told. The parts that its rules read are the published ones; the other words are ours."""

from __future__ import annotations

REWRITES = "You write harder questions about pictures. The answer of a question never changes."
REWRITE = """Look at the picture and at this question:
{question}

Write a much harder question about the picture, which takes deeper reasoning and has the same answer.

Reply in this form:
New Question: [the question]"""
GRADES = "You judge how well questions about pictures were made harder."
GRADE = """How much harder is the new question about the picture?

Original question: {original}
New question: {rewritten}

Give points, in this order of importance:
1. 0 to 5 for reasoning: does it need more steps, deeper analysis or better understanding than the original?
2. 0 to 3 for how it is harder: by reasoning, and not by irrelevant details or long words?
3. 0 to 2 for clarity: is it well put, and does it need the picture, instead of telling what is in it?

Say how each point was given. Reply in exactly this form:
EXPLANATION: [your analysis]
SCORE: [their sum, one number from 0 to 10]"""
SOLVES = (
    "Think first, as an inner monologue in <think> </think> tags. Then give the final answer in \\boxed{}: nothing else may be "
    "in the box."
)
COMPARES = """Do these two answers to one question mean the same?

First: {truth}
Second: {said}

Equal numbers, formulas, measures and words for the same thing count as the same: 1/2 and 0.5, 30 degrees and pi/6 radians.
An answer with a unit and one without it are the same if the number is.

Reply with the single word TRUE if they are the same, and FALSE if not."""
