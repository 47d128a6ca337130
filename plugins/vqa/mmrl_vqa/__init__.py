"""Questions about pictures: choice, number, math, yes or no, short text, the game of 24; the rewards of published systems."""

from mmrl import SamplingRuleSpec, TaskSpec, VerifierSpec, hookimpl
from mmrl.api.endpoints import JUDGE_KEYS

MMRL_CONTRACT = 2

DRAWN = "mmrl_vqa.drawn:"
OURS = "mmrl_vqa.verifiers:"
GAME = "mmrl_vqa.points24:points24"
TABLE = "mmrl_vqa.table:Table"
VLM_R1 = "mmrl_vqa.vlm_r1:"
R1_REWARD = "mmrl_vqa.r1_reward:"
SLOW = 10.0
"""Timeout of verifiers that use math-verify or json_repair, in seconds; the worst formula takes 2, the worst list 1."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    answered = {"vqa/answer": 1.0}
    return [
        TaskSpec(id="vqa/shapes", target=DRAWN + "Shapes", verifiers=answered, summary="questions on drawn scenes of shapes"),
        TaskSpec(id="vqa/compare", target=DRAWN + "Compare", verifiers=answered, summary="questions on two or three scenes"),
        TaskSpec(
            id="vqa/points24",
            target=DRAWN + "Points24",
            verifiers={"vqa/points24": 1.0},
            summary="the game of 24: make 24 from four drawn cards",
        ),
        TaskSpec(
            id="vqa/points24@generalpoints",
            target=DRAWN + "Points24",
            options={"style": "generalpoints", "row": True, "size": 224, "suits": "black"},
            verifiers={"vqa/points24@generalpoints": 1.0},
            summary="the game of 24 as in GeneralPoints-VL (Chu et al. 2025)",
        ),
        TaskSpec(
            id="vqa/navigation@v-irl",
            target="mmrl_vqa.navigation:Navigation",
            verifiers={"vqa/navigation@v-irl": 1.0},
            summary="directions through drawn streets, as in V-IRL (Chu et al. 2025)",
        ),
        TaskSpec(id="vqa/table", target=TABLE, verifiers=answered, summary="your own questions about pictures"),
        TaskSpec(
            id="vqa/consult",
            target="mmrl_vqa.consult:Consult",
            verifiers=answered,
            summary="your own questions with the opinions of specialists, as in MMedAgent-RL (Xia et al. 2025)",
        ),
        TaskSpec(
            id="vqa/propose",
            target="mmrl_vqa.self_play.propose:Propose",
            verifiers={"vqa/proposal": 1.0},
            summary="write a question about a picture, for the rule vqa/self-play",
        ),
        *_published_tables(),
    ]


def _published_tables() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="vqa/table@vlm-r1",
            target=TABLE,
            options={"style": "vlm-r1"},
            verifiers={"vqa/answer@vlm-r1": 1.0, "vqa/format@vlm-r1": 1.0},
            summary="your own questions, with prompt and rewards of VLM-R1 (Shen et al. 2025)",
        ),
        TaskSpec(
            id="vqa/table@mm-eureka",
            target=TABLE,
            options={"style": "mm-eureka"},
            verifiers={"vqa/reward@mm-eureka": 1.0},
            metric="vqa/answer@mm-eureka",
            summary="your own questions, with the reward of MM-Eureka (Meng et al. 2025)",
        ),
        TaskSpec(
            id="vqa/table@r1-v",
            target=TABLE,
            options={"style": "think"},
            verifiers={"vqa/answer@r1-v": 1.0, "vqa/format@vlm-r1": 1.0},
            summary="your own questions, with the rewards of R1-V (Chen et al. 2025)",
        ),
        TaskSpec(
            id="vqa/table@vl-rethinker",
            target=TABLE,
            options={"style": "boxed", "gold_thought": "I look at the picture. Wait, I look again."},
            verifiers={"vqa/reward@vl-rethinker": 1.0},
            metric="vqa/answer@vl-rethinker",
            summary="your own questions, with the reward of VL-Rethinker (Wang et al. 2025)",
        ),
        TaskSpec(
            id="vqa/table@vision-sr1",
            target=TABLE,
            options={"style": "described"},
            verifiers={"vqa/answer": 0.9, "vqa/format@vision-sr1": 0.1},
            summary="your own questions, with a description of the picture first, as in Vision-SR1 (Li et al. 2025)",
        ),
        TaskSpec(
            id="vqa/table@maye",
            target=TABLE,
            options={"style": "maye"},
            verifiers={"vqa/reward@maye": 1.0},
            metric="vqa/answer@maye",
            summary="your own questions, with prompt and reward of MAYE (Ma et al. 2025)",
        ),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(
            id="vqa/answer", timeout_s=SLOW, target=OURS + "answer", summary="the answer, compared by the question's kind"
        ),
        VerifierSpec(id="vqa/choice", target=OURS + "choice", summary="the letter of the right option"),
        VerifierSpec(id="vqa/number", target=OURS + "number_", summary="the number, within a tolerance"),
        VerifierSpec(id="vqa/math", timeout_s=SLOW, target=OURS + "math", summary="a formula that is equal, by math-verify"),
        VerifierSpec(id="vqa/yes-no", target=OURS + "yes_no", summary="yes or no"),
        VerifierSpec(id="vqa/text", target=OURS + "text", summary="one of the accepted short answers"),
        VerifierSpec(
            id="vqa/votes",
            target=OURS + "text",
            options={"votes": True},
            graded=True,
            summary="a short answer, by how many annotators gave it (VQA)",
        ),
        VerifierSpec(id="vqa/format", target=OURS + "form", summary="one think block, then one answer block"),
        VerifierSpec(
            id="vqa/proposal",
            target="mmrl_vqa.self_play.proposals:well_formed",
            graded=True,
            summary="a question with its type and its answer",
        ),
        VerifierSpec(id="vqa/points24", target=GAME, graded=True, summary="a formula of the four cards with the value 24"),
        VerifierSpec(
            id="vqa/format@easyr1", target="mmrl_vqa.easyr1:form", summary="EasyR1's format: thoughts in tags, then a box"
        ),
        *_of_benchmarks(),
        *_of_r1_reward(),
        *_published(),
    ]


@hookimpl
def mmrl_sampling_rules() -> list[SamplingRuleSpec]:
    return [
        SamplingRuleSpec(
            id="vqa/self-play",
            target="mmrl_vqa.self_play.rule:SelfPlay",
            summary="the policy answers the questions that it proposed, and learns from both (VisPlay)",
        ),
        SamplingRuleSpec(
            id="vqa/self-reward",
            target="mmrl_vqa.vision_sr1:SelfReward",
            summary="pays for a description from which the policy finds the answer without the picture (Vision-SR1)",
        ),
        SamplingRuleSpec(
            id="vqa/forced-rethinking",
            target="mmrl_vqa.rethinking:ForcedRethinking",
            smoke={"chance": 1.0, "longest": 64, "fewest": 1, "most": 64},
            summary="answers go on behind words of doubt, and what ends right takes their place (VL-Rethinker)",
        ),
    ]


def _of_benchmarks() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, graded: bool = False) -> VerifierSpec:
        return VerifierSpec(id=f"vqa/{id}", target=f"mmrl_vqa.benchmarks:{target}", summary=summary, graded=graded)

    return [
        spec("relaxed@chartqa", "relaxed", "ChartQA's relaxed accuracy: numbers within 5%"),
        spec("anls@docvqa", "anls", "ANLS, the similarity of texts in DocVQA and InfographicVQA", graded=True),
        spec("contains@ocrbench", "contains", "OCRBench's accuracy: the answer contains an accepted one"),
        spec("votes@textvqa", "votes", "the accuracy of VQA v2 and TextVQA, as their code computes it", graded=True),
    ]


def _of_r1_reward() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="vqa/format@r1-reward", target=R1_REWARD + "form", summary="R1-Reward's format reward"),
        VerifierSpec(
            id="vqa/reward@r1-reward",
            timeout_s=SLOW,
            target=R1_REWARD + "reward",
            high=1.5,
            graded=True,
            summary="R1-Reward's combination, without its judge model",
        ),
        VerifierSpec(
            id="vqa/judged-reward@r1-reward",
            timeout_s=120.0,
            target="mmrl_vqa.r1_reward_judge:JudgedReward",
            high=2.0,
            graded=True,
            model=True,
            batch_size=64,
            environment=JUDGE_KEYS,
            summary="R1-Reward's combination, with the consistency that a model behind an endpoint judges",
        ),
    ]


def _of_reasoners() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, low: float = 0.0, high: float = 1.0) -> VerifierSpec:
        graded = (low, high) != (0.0, 1.0)
        return VerifierSpec(
            id=f"vqa/{id}", timeout_s=SLOW, target=f"mmrl_vqa.{target}", graded=graded, low=low, high=high, summary=summary
        )

    return [
        spec("reward@mm-eureka", "mm_eureka:reward", "MM-Eureka's reward: accuracy, and half for the format", high=1.5),
        spec("answer@mm-eureka", "mm_eureka:accuracy", "MM-Eureka's accuracy"),
        spec("answer@r1-v", "r1_v:accuracy", "R1-V's accuracy"),
        spec("reward@vl-rethinker", "vl_rethinker:reward", "VL-Rethinker's reward, more for reconsidering", low=-0.1, high=1.1),
        spec("answer@vl-rethinker", "vl_rethinker:accuracy", "VL-Rethinker's accuracy"),
        spec("format@vision-sr1", "vision_sr1:form", "Vision-SR1's format: a description, thoughts in tags, then a box"),
    ]


def _published() -> list[VerifierSpec]:
    return [
        VerifierSpec(
            id="vqa/answer@vlm-r1", timeout_s=SLOW, target=VLM_R1 + "answer", graded=True, summary="VLM-R1's default accuracy"
        ),
        VerifierSpec(id="vqa/choice@vlm-r1", target=VLM_R1 + "choice", summary="VLM-R1's mcq"),
        VerifierSpec(id="vqa/yes-no@vlm-r1", target=VLM_R1 + "yes_no", summary="VLM-R1's yes_no"),
        VerifierSpec(id="vqa/match@vlm-r1", target=VLM_R1 + "match", summary="VLM-R1's all_match"),
        VerifierSpec(id="vqa/format@vlm-r1", target=VLM_R1 + "form", summary="VLM-R1's format reward"),
        VerifierSpec(
            id="vqa/repetition@vlm-r1",
            timeout_s=SLOW,
            target=VLM_R1 + "repetition",
            low=-1.0,
            high=0.0,
            graded=True,
            summary="VLM-R1's penalty for repetition",
        ),
        VerifierSpec(
            id="vqa/length@vlm-r1",
            target=VLM_R1 + "length",
            low=0.5,
            graded=True,
            rollout=True,
            summary="VLM-R1's cosine length reward, with its fault",
        ),
        VerifierSpec(
            id="vqa/letter@seed-bench-r1", timeout_s=SLOW, target="mmrl_vqa.seed_bench:letter", summary="SEED-Bench-R1's accuracy"
        ),
        VerifierSpec(
            id="vqa/reward@maye",
            timeout_s=SLOW,
            target="mmrl_vqa.maye_rewards:reward",
            low=-0.1,
            high=2.0,
            graded=True,
            rollout=True,
            summary="MAYE's reward: accuracy, format, language, and a penalty without an end",
        ),
        *_of_reasoners(),
        VerifierSpec(id="vqa/answer@maye", timeout_s=SLOW, target="mmrl_vqa.maye_rewards:accuracy", summary="MAYE's accuracy"),
        VerifierSpec(
            id="vqa/reflection@maye", target="mmrl_vqa.maye:reflection", summary="MAYE's metrics of reflection; use the weight 0"
        ),
        VerifierSpec(
            id="vqa/navigation@v-irl",
            target="mmrl_vqa.virl:reward",
            low=-1.5,
            graded=True,
            summary="V-IRL's reward of the last answer",
        ),
        VerifierSpec(
            id="vqa/points24@generalpoints",
            target="mmrl_vqa.generalpoints:reward",
            low=-100.0,
            high=5.0,
            graded=True,
            summary="GeneralPoints' rewards, as in its released code",
        ),
    ]
