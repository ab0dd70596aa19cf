//! Detection of translations in a wrong language.
//!
//! Languages with different scripts are distinguished by script; others by the words that the source does not have, since common words
//! are names, commands and terms.

use whatlang::{Detector, Lang};

use super::words::{Vocabulary, is_function_word};
use crate::language::Language;
use crate::prompt::Task;
use crate::script::{self, Script};

/// The letters needed to detect a language among the two or three likely ones.
const LIKELY_LETTERS_MIN: usize = 120;

/// The letters needed to detect a language among all.
const ANY_LETTERS_MIN: usize = 300;

/// Letters of a foreign script that are too many for names.
const FOREIGN_LETTERS_MIN: u64 = 40;

/// The same without any letter of the target's script: new words in Latin letters can be names, others cannot.
const LATIN_LETTERS_MIN: u64 = 20;
const STRANGE_LETTERS_MIN: u64 = 4;

/// The fewest words of the source in a translation that are significant, and their share in percent.
const SOURCE_WORDS_MIN: usize = 8;
const SOURCE_WORDS_PERCENT: usize = 70;

/// The most English function words that a translation keeps.
const FUNCTION_WORDS_MAX: usize = 2;

/// The characters needed to distinguish Chinese, Japanese and Korean by their shares of scripts.
const HAN_MIN: usize = 60;
const KANA_MIN: usize = 12;

/// The characters of one Chinese script that exclude the other.
const VARIANT_MIN: usize = 8;

/// Frequent characters of only one of the two Chinese scripts.
const SIMPLIFIED: &str = "这国说时对会为个来发学过还让从进开关实现应种问题统设员业动务产经济区无没书见长门间计认试话请读写网络错误运数据库环载选项启";
const TRADITIONAL: &str = "這國說時對會為個來發學過還讓從進開關實現應種問題統設員業動務產經濟區無沒書見長門間計認試話請讀寫網絡錯誤運數據庫環載選項啟";

/// Languages that are easily confused.
const ALIKE: &[&[&str]] = &[
    &["da", "nb", "sv"],
    &["es", "pt", "gl", "ca", "it", "la"],
    &["cs", "sk", "sl"],
    &["hr", "sr", "bs", "sl"],
    &["id", "ms", "jv", "tl"],
    &["af", "nl"],
    &["ru", "be", "uk", "bg", "mk", "sr"],
    &["hi", "mr", "ne"],
    &["az", "tr", "tk", "uz"],
    &["ar", "fa", "ur"],
    &["he", "yi"],
    &["et", "fi"],
    &["lt", "lv"],
    &["sn", "zu"],
    &["en", "eo"],
];

/// Returns the language of a translated segment, if it is not the target.
pub(super) fn segment_language(task: &Task, source: &str, text: &str) -> Option<Language> {
    let vocabulary = Vocabulary::from_text(source);
    if let Some(found) = by_script(task, &vocabulary, text) {
        return Some(found);
    }
    if is_mostly_source(task, &vocabulary, text) {
        return Some(task.from.clone());
    }
    let likely = [Some(task.to.detected()?), task.from.detected(), Some(Lang::Eng)];
    let detector = Detector::with_allowlist(likely.into_iter().flatten().collect());
    detected(&detector, &without(&vocabulary, text), LIKELY_LETTERS_MIN)
        .filter(|found| !found.is_same_as(&task.to))
}

/// Returns the language of all translated segments together, if it is not the target.
pub(super) fn answer_language(task: &Task, source: &str, text: &str) -> Option<Language> {
    let vocabulary = Vocabulary::from_text(source);
    if let Some(found) = by_script(task, &vocabulary, text) {
        return Some(found);
    }
    task.to.detected()?;
    detected(&Detector::new(), &without(&vocabulary, text), ANY_LETTERS_MIN)
        .filter(|found| !found.is_same_as(&task.to) && !are_alike(found, &task.to))
}

fn detected(detector: &Detector, text: &str, letters_min: usize) -> Option<Language> {
    let letters = text.chars().filter(|c| c.is_alphabetic()).take(letters_min).count();
    let info = detector.detect(text).filter(|info| letters_min <= letters && info.is_reliable())?;
    Language::from_detected(info.lang())
}

fn are_alike(one: &Language, other: &Language) -> bool {
    let code =
        |language: &Language| language.tag().split('-').next().unwrap_or_default().to_owned();
    let (one, other) = (code(one), code(other));
    ALIKE.iter().any(|group| group.contains(&one.as_str()) && group.contains(&other.as_str()))
}

/// Returns `text` without the words of its source.
fn without(vocabulary: &Vocabulary, text: &str) -> String {
    let words = script::words(text).filter(|word| !vocabulary.has(word));
    words.map(|word| word.text).collect::<Vec<_>>().join(" ")
}

/// Detects new words in a foreign script, or in the wrong one of several.
fn by_script(task: &Task, vocabulary: &Vocabulary, text: &str) -> Option<Language> {
    let scripts = script::scripts_of(&task.to);
    let (mut own, mut letters, mut foreign) = (0, 0, Vec::new());
    for word in script::words(text).filter(|word| !vocabulary.has(word)) {
        let Some(script) = word.script else { continue };
        let weight = script.weight() * word.text.chars().count() as u64;
        if scripts.contains(&script) {
            own += weight;
        } else {
            letters += weight;
            foreign.push(word);
        }
    }
    let is_latin = foreign.iter().all(|word| word.script == Some(Script::Latin));
    let alone = if is_latin { LATIN_LETTERS_MIN } else { STRANGE_LETTERS_MIN };
    if (FOREIGN_LETTERS_MIN <= letters && own < letters) || (own == 0 && alone <= letters) {
        let words: Vec<&str> = foreign.iter().map(|word| word.text).collect();
        let info = Detector::new().detect(&words.join(" "));
        let found = info.and_then(|info| Language::from_detected(info.lang()));
        let found = found.filter(|found| !found.is_same_as(&task.to));
        return Some(found.unwrap_or_else(|| task.from.clone()));
    }
    among_han(task, text)
}

/// Detects Chinese for Japanese or Korean, Japanese for Chinese, and one Chinese script for the other.
fn among_han(task: &Task, text: &str) -> Option<Language> {
    let count = |wanted: Script| {
        text.chars().filter_map(Script::from_char).filter(|it| *it == wanted).count()
    };
    let named = |tag: &str| tag.parse::<Language>().ok();
    let (han, kana) = (count(Script::Han), count(Script::Kana));
    match task.to.tag().split('-').next()? {
        "ja" if HAN_MIN <= han && kana * 20 < han => named("zh"),
        "ko" if HAN_MIN <= han && count(Script::Hangul) < han => named("zh"),
        "zh" if KANA_MIN <= kana && han < kana * 4 => named("ja"),
        "zh" => {
            let frequent = |of: &str| text.chars().filter(|letter| of.contains(*letter)).count();
            let (simplified, traditional) = (frequent(SIMPLIFIED), frequent(TRADITIONAL));
            let is_much = |wrong: usize, right: usize| VARIANT_MIN <= wrong && right * 4 < wrong;
            match variant(&task.to)? {
                Variant::Traditional if is_much(simplified, traditional) => named("zh-Hans"),
                Variant::Simplified if is_much(traditional, simplified) => named("zh-Hant"),
                _ => None,
            }
        }
        _ => None,
    }
}

enum Variant {
    Simplified,
    Traditional,
}

fn variant(chinese: &Language) -> Option<Variant> {
    chinese.tag().split('-').skip(1).find_map(|part| match part.to_ascii_lowercase().as_str() {
        "hans" | "cn" | "sg" => Some(Variant::Simplified),
        "hant" | "tw" | "hk" | "mo" => Some(Variant::Traditional),
        _ => None,
    })
}

/// Returns whether most words are those of the source, and more than names and commands.
fn is_mostly_source(task: &Task, vocabulary: &Vocabulary, text: &str) -> bool {
    let scripts = script::scripts_of(&task.from);
    let of_source = |word: &script::Word<'_>| word.script.is_some_and(|it| scripts.contains(&it));
    let plain: Vec<_> =
        script::words(text).filter(of_source).filter(script::Word::is_plain).collect();
    let kept: Vec<_> = plain.iter().filter(|word| vocabulary.has(word)).collect();
    let function_words = kept.iter().filter(|word| is_function_word(word.text)).count();
    let is_english = task.from.is_same_as(&Language::english());
    let own: u64 = script::words(text)
        .filter(|word| !of_source(word))
        .map(|word| word.text.chars().count() as u64)
        .sum();
    let letters: u64 = kept.iter().map(|word| word.text.chars().count() as u64).sum();
    SOURCE_WORDS_MIN <= kept.len()
        && plain.len() * SOURCE_WORDS_PERCENT <= kept.len() * 100
        && own < letters
        && (!is_english || FUNCTION_WORDS_MAX < function_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGLISH: &str = "The river ran between old houses, and nobody knew where it came from, although people often talked \
        about its source in winter evenings, when there was little else to do.";
    const CHINESE: &str = "这条河在古老的房屋之间流过，没有人知道它从哪里来，虽然在冬天的夜晚，当没有别的事情可做的时候，\
        人们经常谈论它的源头，并且说这个国家的每一条河都会在对的时间来到它应该去的地方。";
    const JAPANESE: &str = "川は古い家々の間を流れており、それがどこから来るのか誰も知らなかったが、冬の夜、他にすることがあまり\
        ないときには、人々はよくその水源について語り合った。";
    const RUSSIAN: &str = "Река текла между старыми домами, и никто не знал, откуда она берётся, хотя зимними вечерами, когда больше \
        нечего было делать, люди часто говорили о её истоке.";
    const GERMAN: &str = "Der Fluss lief zwischen alten Häusern hindurch, und niemand wusste, woher er kam, obwohl man an \
        Winterabenden, wenn es sonst wenig zu tun gab, oft über seine Quelle sprach.";

    fn found(to: &str, text: &str) -> Option<String> {
        let task = Task::new(Language::english(), to.parse().unwrap());
        segment_language(&task, ENGLISH, text).map(|found| found.tag().to_owned())
    }

    #[test]
    fn no_character_is_in_both_chinese_scripts() {
        assert!(SIMPLIFIED.chars().all(|letter| !TRADITIONAL.contains(letter)));
        assert_eq!(SIMPLIFIED.chars().count(), TRADITIONAL.chars().count());
    }

    #[test]
    fn a_text_in_the_target_language_is_no_fault() {
        for (to, text) in [
            ("zh", CHINESE),
            ("zh-Hans", CHINESE),
            ("ja", JAPANESE),
            ("ru", RUSSIAN),
            ("de", GERMAN),
        ] {
            assert_eq!(found(to, text), None, "{to}");
            // Names and commands in Latin letters change nothing, however many there are.
            let source = format!(
                "{ENGLISH} dpkg apt-get aptitude synaptic tasksel debootstrap update-alternatives"
            );
            let text = format!(
                "{text} (dpkg apt-get aptitude synaptic tasksel debootstrap update-alternatives)"
            );
            let task = Task::new(Language::english(), to.parse().unwrap());
            assert_eq!(segment_language(&task, &source, &text), None, "{to}");
        }
    }

    #[test]
    fn a_text_in_another_language_is_recognised_by_script_or_by_words() {
        let rows = [
            ("ja", ENGLISH, "en"),
            ("ja", CHINESE, "zh"),
            ("zh", JAPANESE, "ja"),
            ("zh-Hant", CHINESE, "zh-Hans"),
            ("ru", GERMAN, "de"),
            ("de", RUSSIAN, "ru"),
            ("ar", RUSSIAN, "ru"),
            ("de", ENGLISH, "en"),
        ];
        for (to, text, wanted) in rows {
            assert_eq!(found(to, text).as_deref(), Some(wanted), "{to}: {text}");
        }
        // Halfway through it the model fell back into the source's language.
        let half = ENGLISH.split_once("although").unwrap().1;
        assert_eq!(found("ja", &format!("川は流れた。{half}")).as_deref(), Some("en"));
    }

    #[test]
    fn all_together_any_language_is_recognised_that_is_not_alike() {
        let task = |to: &str| Task::new(Language::english(), to.parse().unwrap());
        let long = GERMAN.repeat(3);
        assert_eq!(answer_language(&task("fr"), ENGLISH, &long), Some("de".parse().unwrap()));
        assert_eq!(answer_language(&task("de"), ENGLISH, &long), None);
        assert_eq!(answer_language(&task("bg"), ENGLISH, &RUSSIAN.repeat(3)), None);
    }
}
