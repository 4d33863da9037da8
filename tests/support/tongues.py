# ruff: noqa: RUF001, RUF002  (punctuation of these languages)
"""Two hundred passages and questions in Chinese, Japanese, Korean and Thai, made by rule of real names and words.

    people("zh")[0]  ->  (Passage("p0", "王建国", "王建国是在北京出生的画家..."), "请问王建国的故乡在哪座城市？")

Twenty family names (in Thai behind) times ten given names are 200 people. Each has a passage of the same sentences: a
birthplace, a profession, a school and a year, drawn from small lists, so that every word but the name
stands in many passages; half of a name stands in ten or twenty, and the whole name also in the passage of the person
that was drawn as a schoolmate. The question has the name and none of the sentences.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from mem1.records import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Tongue:
    """The words and sentences of one language, with {name}, {mate}, {place}, {job}, {school} and {year}."""

    name: str
    family: str
    given: str
    places: str
    jobs: str
    schools: str
    passage: str
    question: str


TONGUES: Mapping[str, Tongue] = {
    "zh": Tongue(
        name="{family}{given}",
        family="王 李 张 刘 陈 杨 黄 赵 吴 周 徐 孙 马 朱 胡 郭 何 高 林 罗",
        given="建国 志强 秀英 丽华 明远 文博 海燕 春梅 思远 国栋",
        places="北京 上海 广州 成都 杭州 南京 西安 武汉",
        jobs="画家 作家 医生 物理学家 作曲家 建筑师",
        schools="北京大学 复旦大学 浙江大学 南京大学",
        passage="{name}是在{place}出生的{job}，{year}年毕业于{school}，与{mate}是同学，后来获得多项国家奖励。",
        question="请问{name}的故乡在哪座城市？",
    ),
    "ja": Tongue(
        name="{family}{given}",
        family="佐藤 鈴木 高橋 田中 伊藤 渡辺 山本 中村 小林 加藤 吉田 山田 佐々木 山口 松本 井上 木村 林 斎藤 清水",
        given="太郎 花子 健一 さくら 翔太 美咲 直樹 由美子 大輔 あかり",
        places="東京 大阪 京都 札幌 福岡 名古屋 仙台 広島",
        jobs="画家 作家 医師 物理学者 作曲家 建築家",
        schools="東京大学 京都大学 早稲田大学 大阪大学",
        passage="{name}は{place}生まれの{job}である。{year}年に{school}を卒業し、{mate}と同級生だった。多くの賞を受けた。",
        question="{name}さんの出身地はどこですか？",
    ),
    "ko": Tongue(
        name="{family}{given}",
        family="김 이 박 최 정 강 조 윤 장 임 한 오 서 신 권 황 안 송 류 홍",
        given="민수 영희 지훈 서연 현우 수진 동현 은주 준호 미영",
        places="서울 부산 대구 인천 광주 대전 울산 제주",
        jobs="화가 작가 의사 물리학자 작곡가 건축가",
        schools="서울대학교 연세대학교 고려대학교 부산대학교",
        passage="{name}은 {place}에서 태어난 {job}이다. {year}년에 {school}를 졸업했고 {mate}와 동창이다.",
        question="{name}의 고향은 어디입니까?",
    ),
    "th": Tongue(
        name="{given} {family}",
        family="ใจดี แสงทอง ศรีสุข วงศ์ไทย บุญมี ทองคำ รักชาติ สุขสันต์ พงษ์พันธุ์ จันทร์แก้ว มีสุข ชัยชนะ เพชรรัตน์ พรหมมา "
        "อินทร์แก้ว คำแสน สายทอง แก้วมณี สมบูรณ์ ทองดี",
        given="สมชาย สมหญิง ประเสริฐ มาลี วิชัย สุดา อนันต์ กมล ธนา พิมพ์ใจ",
        places="กรุงเทพ เชียงใหม่ ขอนแก่น ภูเก็ต อยุธยา สงขลา ลำปาง ระยอง",
        jobs="จิตรกร นักเขียน แพทย์ นักฟิสิกส์ นักแต่งเพลง สถาปนิก",
        schools="จุฬาลงกรณ์มหาวิทยาลัย มหาวิทยาลัยธรรมศาสตร์ มหาวิทยาลัยมหิดล มหาวิทยาลัยเกษตรศาสตร์",
        passage="{name}เป็น{job}ที่เกิดใน{place} จบการศึกษาจาก{school}ในปี {year} รุ่นเดียวกับ{mate} และได้รับรางวัลหลายครั้ง",
        question="บ้านเกิดของ{name}อยู่จังหวัดอะไร",
    ),
}


def people(language: str) -> list[tuple[Passage, str]]:
    """The passages, each with the question that it answers."""
    tongue, rng = TONGUES[language], random.Random(language)
    names = [tongue.name.format(family=f, given=g) for f in tongue.family.split() for g in tongue.given.split()]
    made = []
    for number, name in enumerate(names):
        words = {
            "mate": names[(number + rng.randrange(1, len(names))) % len(names)],
            "place": rng.choice(tongue.places.split()),
            "job": rng.choice(tongue.jobs.split()),
            "school": rng.choice(tongue.schools.split()),
            "year": str(rng.randrange(1950, 2000)),
        }
        text = tongue.passage.format(name=name, **words)
        made.append((Passage(f"p{number}", name, text), tongue.question.format(name=name)))
    return made
