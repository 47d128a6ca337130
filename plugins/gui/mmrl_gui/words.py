"""Texts of generated pages: words of buttons and menus in seven languages, and items for lists."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.resources import files as data

LANGUAGES = ("en", "de", "fr", "es", "it", "pl", "ru")
_TABLE = data("mmrl_gui").joinpath("words.txt").read_text(encoding="utf-8")
WORDS: dict[str, dict[str, str]] = {
    concept: dict(zip(LANGUAGES, words, strict=True)) for concept, *words in (row.split("|") for row in _TABLE.splitlines())
}
"""Concept -> language -> text on a button."""
_THINGS = {
    "en": "Invoice|Meeting|Holiday plans|Contract|Report|Ticket|Order|Recipe|Travel guide|Budget|Photos|Schedule|Survey|Workshop",
    "de": "Rechnung|Besprechung|Urlaub|Vertrag|Bericht|Fahrkarte|Bestellung|Rezept|Reiseführer|Haushalt|Bilder|Zeitplan|Umfrage",
    "fr": "Facture|Réunion|Vacances|Contrat|Compte rendu|Billet|Commande|Recette|Guide|Budget|Images|Horaire|Sondage|Atelier",
    "es": "Factura|Reunión|Vacaciones|Contrato|Informe|Billete|Pedido|Receta|Guía|Presupuesto|Imágenes|Horario|Encuesta|Taller",
    "it": "Fattura|Riunione|Vacanze|Contratto|Relazione|Biglietto|Ordine|Ricetta|Guida|Bilancio|Immagini|Orario|Sondaggio",
    "pl": "Faktura|Spotkanie|Urlop|Umowa|Sprawozdanie|Bilet|Zamówienie|Przepis|Przewodnik|Budżet|Obrazy|Rozkład|Ankieta",
    "ru": "Счёт|Встреча|Отпуск|Договор|Доклад|Билет|Заказ|Рецепт|Путеводитель|Бюджет|Снимки|Расписание|Опрос|Семинар",
}
_MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "pl": "styczeń luty marzec kwiecień maj czerwiec lipiec sierpień wrzesień październik listopad grudzień",
    "ru": "январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь",
}
_WEEKDAYS = {
    "en": "Mo Tu We Th Fr Sa Su", "de": "Mo Di Mi Do Fr Sa So", "fr": "lu ma me je ve sa di", "es": "lu ma mi ju vi sá do",
    "it": "lu ma me gi ve sa do", "pl": "pn wt śr cz pt so nd", "ru": "пн вт ср чт пт сб вс",
}  # fmt: skip
_GOODS = {
    "mug": "Mug", "lamp": "Lamp", "book": "Book", "plant": "Plant", "bag": "Bag", "chair": "Chair", "bottle": "Bottle",
    "watch": "Watch", "shirt": "Shirt", "ball": "Ball",
}  # fmt: skip
GOODS = tuple(_GOODS)
"""Goods of a shop that have pictures."""
KINDS_OF_GOODS = (
    "Alta",
    "Boreal",
    "Cedro",
    "Dune",
    "Ember",
    "Fjord",
    "Garnet",
    "Hazel",
    "Indigo",
    "Juno",
    "Koa",
    "Lumen",
    "Mistral",
)
GIVEN = (
    "Ada",
    "Ben",
    "Chloé",
    "Dario",
    "Elif",
    "Farid",
    "Greta",
    "Hugo",
    "Inès",
    "Jonas",
    "Kaja",
    "Liam",
    "Mina",
    "Noor",
    "Olga",
    "Pavel",
)
PLACES = (
    "Lisbon",
    "Oslo",
    "Kraków",
    "Nairobi",
    "Lima",
    "Kyoto",
    "Tbilisi",
    "Cork",
    "Bergen",
    "Porto",
    "Accra",
    "Quito",
    "Hanoi",
    "Turin",
)
SONGS = (
    "Slow River",
    "Paper Moon",
    "Northern Line",
    "Salt and Light",
    "Late Tram",
    "Glass Garden",
    "Two Harbours",
    "Low Tide",
    "Amber",
)
ENDINGS = {
    ".pdf": "sheet of paper",
    ".docx": "sheet of paper",
    ".png": "picture",
    ".jpg": "picture",
    ".mp3": "musical note",
    ".mp4": "video camera",
}
"""File endings, and the icon of their kind."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of one language."""

    language: str

    def __getitem__(self, concept: str) -> str:
        return WORDS[concept][self.language]

    @property
    def months(self) -> list[str]:
        return _MONTHS[self.language].split()

    @property
    def weekdays(self) -> list[str]:
        return _WEEKDAYS[self.language].split()

    def titles(self, draw: random.Random, count: int) -> list[str]:
        """Different titles for lists: `Invoice March`, `Report 12`."""
        stems = _THINGS[self.language].split("|")
        chosen = draw.sample(stems, min(count, len(stems)))
        while len(chosen) < count:  # repeats get another number
            chosen.append(draw.choice(stems))
        found: dict[str, None] = {}
        for stem in chosen:
            title = stem
            while title in found or title == stem:
                title = f"{stem} {draw.choice(self.months) if draw.random() < 0.4 else draw.randint(2, 99)}"
            found[title] = None
        return list(found)

    def files(self, draw: random.Random, count: int) -> list[tuple[str, str]]:
        """(name, ending) of different files."""
        names = [title.lower().replace(" ", draw.choice("-_")) for title in self.titles(draw, count)]
        return [(name, draw.choice(tuple(ENDINGS))) for name in names]


def goods(draw: random.Random, count: int) -> list[tuple[str, str]]:
    """(kind, name) of different goods in a shop."""
    brands = (
        draw.sample(KINDS_OF_GOODS, count)
        if count <= len(KINDS_OF_GOODS)
        else [draw.choice(KINDS_OF_GOODS) for _ in range(count)]
    )
    kinds = draw.sample(GOODS, min(count, len(GOODS)))
    kinds += [draw.choice(GOODS) for _ in range(count - len(kinds))]
    return [(kind, f"{_GOODS[kind]} {brand}") for kind, brand in zip(kinds, brands, strict=True)]


def price(draw: random.Random) -> str:
    return f"{draw.choice(('€', '$', '£'))}{draw.randint(3, 240)}.{draw.choice(('00', '50', '90', '95', '99'))}"
