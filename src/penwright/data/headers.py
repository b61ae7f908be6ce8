"""What columns of tables are usually called, in lower case."""


def _names(words: str) -> tuple[str, ...]:
    return tuple(words.split())


LANGUAGE_NAMES = frozenset(
    _names("""
    english german french spanish polish czech italian russian chinese
    af ar be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id is it ja ka kk ko lt lv mk ml
    mn mr ms mt nb ne nl nn no pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh
    """)
)
SOURCE_NAMES = _names("source src input source_text")
TARGET_NAMES = _names("target tgt trg output translation target_text reference")
TEXT_NAMES = _names("""
    text sentence content review document body message comment tweet question
    文本 内容 內容 评论 句子 テキスト 本文 텍스트 문장 текст отзыв نص النص texto texte testo tekst metin
""")
LABEL_NAMES = _names("""
    label class category sentiment intent topic labels class_index coarse_label
    标签 標籤 类别 類別 分类 情感 ラベル カテゴリ 레이블 라벨 метка класс категория تصنيف التصنيف الفئة
    etiqueta etikett etichetta etykieta étiquette etiket kategorie kategoria categoría catégorie
""")
OTHER_NAMES = _names("id idx index title description name date rating stars score pos")
TELLING_NAMES = frozenset((*SOURCE_NAMES, *TARGET_NAMES, *TEXT_NAMES, *LABEL_NAMES))
HEADER_NAMES = TELLING_NAMES | LANGUAGE_NAMES | set(OTHER_NAMES)
