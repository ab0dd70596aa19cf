//! Human translations into languages of many scripts: each is good for its own language, and found in every other.

use tollgate_translate::{Chunk, Fault, Format, verify};

use crate::{read, task};

/// A sentence of a manual, with commands in Latin letters, as people translate it.
const MANUAL: &str = "If the service does not start, run journalctl -u nginx and read the last lines before you change /etc/nginx/nginx.conf or restart \
    systemd-resolved; the reason is almost always there.";

#[test]
fn r003_5_translations_into_any_script_are_good_and_each_is_wrong_for_every_other() {
    let rows = [
        (
            "ja",
            "サービスが起動しない場合は、/etc/nginx/nginx.conf を変更したり systemd-resolved を再起動したりする前に、journalctl -u nginx を実行して最後の数行を読んでください。原因はほとんどの場合そこにあります。",
        ),
        (
            "zh-Hans",
            "如果服务无法启动，在修改 /etc/nginx/nginx.conf 或重启 systemd-resolved 之前，请先运行 journalctl -u nginx 并阅读最后几行；原因几乎总是在那里，对这个问题来说，网络上的说明没有应用自己的话说得清楚。",
        ),
        (
            "zh-Hant",
            "如果服務無法啟動，在修改 /etc/nginx/nginx.conf 或重新啟動 systemd-resolved 之前，請先執行 journalctl -u nginx 並閱讀最後幾行；原因幾乎總是在那裡，對這個問題來說，網路上的說明沒有應用自己的話說得清楚。",
        ),
        (
            "ko",
            "서비스가 시작되지 않으면 /etc/nginx/nginx.conf를 고치거나 systemd-resolved를 다시 시작하기 전에 journalctl -u nginx를 실행하여 마지막 몇 줄을 읽어 보십시오. 원인은 거의 언제나 그곳에 있습니다.",
        ),
        (
            "th",
            "หากบริการไม่เริ่มทำงาน ให้เรียกใช้ journalctl -u nginx แล้วอ่านบรรทัดท้าย ๆ ก่อนที่จะแก้ไข /etc/nginx/nginx.conf หรือเริ่ม systemd-resolved ใหม่ สาเหตุมักจะอยู่ที่นั่นเสมอ",
        ),
        (
            "ar",
            "إذا لم تبدأ الخدمة، فشغّل journalctl -u nginx واقرأ الأسطر الأخيرة قبل أن تغيّر /etc/nginx/nginx.conf أو تعيد تشغيل systemd-resolved؛ فالسبب هناك دائمًا تقريبًا.",
        ),
        (
            "he",
            "אם השירות אינו עולה, הריצו journalctl -u nginx וקראו את השורות האחרונות לפני שתשנו את /etc/nginx/nginx.conf או תפעילו מחדש את systemd-resolved; הסיבה נמצאת שם כמעט תמיד.",
        ),
        (
            "ru",
            "Если служба не запускается, выполните journalctl -u nginx и прочтите последние строки, прежде чем менять /etc/nginx/nginx.conf или перезапускать systemd-resolved; причина почти всегда там.",
        ),
        (
            "hi",
            "यदि सेवा शुरू नहीं होती, तो /etc/nginx/nginx.conf बदलने या systemd-resolved को फिर से शुरू करने से पहले journalctl -u nginx चलाएँ और अंतिम पंक्तियाँ पढ़ें; कारण लगभग हमेशा वहीं होता है।",
        ),
        (
            "el",
            "Αν η υπηρεσία δεν ξεκινά, εκτελέστε journalctl -u nginx και διαβάστε τις τελευταίες γραμμές προτού αλλάξετε το /etc/nginx/nginx.conf ή επανεκκινήσετε το systemd-resolved· ο λόγος βρίσκεται σχεδόν πάντα εκεί.",
        ),
        (
            "de",
            "Wenn der Dienst nicht startet, führen Sie journalctl -u nginx aus und lesen Sie die letzten Zeilen, bevor Sie /etc/nginx/nginx.conf ändern oder systemd-resolved neu starten; der Grund steht fast immer dort.",
        ),
    ];
    let document = read(MANUAL, Format::Text);
    let chunk = Chunk::from_segments(&document, 0..1);
    for (to, _) in rows {
        for (of, text) in rows {
            let checked = verify(&task("en", to), &document, &chunk, &format!("⟦#1⟧ {text}"));
            let found = checked.into_texts().err();
            match (&found, of == to) {
                (None, true) | (Some(Fault::Language { .. } | Fault::Length { .. }), false) => {}
                _ => panic!("{of} for {to}: {found:?}"),
            }
        }
    }
}
