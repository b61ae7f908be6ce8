"""Common names of table columns, in lower case."""

from penwright.languages import LANGUAGE_NAMES, split_words

SOURCE_NAMES = split_words("source src input source_text")
TARGET_NAMES = split_words("target tgt trg output translation target_text reference")
TEXT_NAMES = split_words("""
    text sentence content review document body message comment tweet question
    文本 内容 內容 评论 句子 テキスト 本文 텍스트 문장 текст отзыв نص النص texto texte testo tekst metin
""")
LABEL_NAMES = split_words("""
    label class category sentiment intent topic labels class_index coarse_label
    标签 標籤 类别 類別 分类 情感 ラベル カテゴリ 레이블 라벨 метка класс категория تصنيف التصنيف الفئة
    etiqueta etikett etichetta etykieta étiquette etiket kategorie kategoria categoría catégorie
""")
RATING_NAMES = split_words("target y gold polarity spam tag stars rating is_spam note noten bewertung nota puntuación")
DETAIL_NAMES = frozenset(
    split_words("lang language source domain split country licence license subset license_id locale")
)
PROMPT_NAMES = split_words("instruction prompt question query")  # texts that a model answers
ANSWER_NAMES = split_words("response completion answer output")
PAIRS_OF_TEXTS = (
    ("premise", "hypothesis"),
    ("query", "passage"),
    ("question", "passage"),
    ("question", "sentence"),
    ("query", "document"),
)
OTHER_NAMES = split_words("id idx index title description name date rating stars score pos")
TELLING_NAMES = frozenset((*SOURCE_NAMES, *TARGET_NAMES, *TEXT_NAMES, *LABEL_NAMES))
HEADER_NAMES = TELLING_NAMES | LANGUAGE_NAMES | set(OTHER_NAMES)
