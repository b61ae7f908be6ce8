"""Common names of table columns, in lower case."""


def _names(words: str) -> tuple[str, ...]:
    return tuple(words.split())


LANGUAGE_NAMES = frozenset(
    _names("""
    english german french spanish polish czech italian russian chinese
    af ar be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id is it ja ka kk ko lt lv mk ml
    mn mr ms mt nb ne nl nn no pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh
    """)
)
CODES = dict(
    word.split("=")
    for word in _names("""
    english=en german=de french=fr spanish=es polish=pl czech=cs italian=it russian=ru chinese=zh
    eng=en deu=de ger=de fra=fr fre=fr spa=es pol=pl ces=cs cze=cs ita=it rus=ru zho=zh chi=zh cmn=zh por=pt nld=nl
    dut=nl jpn=ja kor=ko ara=ar arb=ar tur=tr ukr=uk swe=sv dan=da nor=no nob=nb nno=nn fin=fi hun=hu ron=ro rum=ro
    bul=bg hrv=hr srp=sr slk=sk slo=sk slv=sl est=et lav=lv lvs=lv lit=lt ell=el gre=el heb=he hin=hi ben=bn tam=ta
    tel=te urd=ur fas=fa per=fa pes=fa vie=vi tha=th ind=id msa=ms may=ms tgl=tl cat=ca glg=gl eus=eu baq=eu gle=ga
    cym=cy wel=cy isl=is ice=is sqi=sq alb=sq mkd=mk mac=mk bos=bs bel=be kat=ka geo=ka kaz=kk uzb=uz afr=af swa=sw
    epo=eo guj=gu mar=mr mal=ml
    """)
)  # other names and codes of languages, with the two-letter code of each
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
RATING_NAMES = _names("target y gold polarity spam tag stars rating is_spam note noten bewertung nota puntuación")
DETAIL_NAMES = frozenset(_names("lang language source domain split country licence license subset license_id locale"))
PROMPT_NAMES = _names("instruction prompt question query")  # texts that a model answers
ANSWER_NAMES = _names("response completion answer output")
PAIRS_OF_TEXTS = (
    ("premise", "hypothesis"),
    ("query", "passage"),
    ("question", "passage"),
    ("question", "sentence"),
    ("query", "document"),
)
OTHER_NAMES = _names("id idx index title description name date rating stars score pos")
TELLING_NAMES = frozenset((*SOURCE_NAMES, *TARGET_NAMES, *TEXT_NAMES, *LABEL_NAMES))
HEADER_NAMES = TELLING_NAMES | LANGUAGE_NAMES | set(OTHER_NAMES)
